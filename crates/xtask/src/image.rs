//! Container images without Docker: one static binary, from scratch, as an OCI image in a tar file.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cargo::{self, Profile};
use crate::cluster::Cluster;
use crate::home::{Home, repository};
use crate::progress::{Part, note};
use crate::tools::{Tool, Tools};

pub(crate) const PAUSE: &str = "lockstep.dev/pause:local";
pub(crate) const ARGO_ROLLOUTS: &str = "lockstep.dev/argo-rollouts:local";
const COREDNS: &str = "lockstep.dev/coredns:local";

/// Nobody in particular, and not root.
const USER: &str = "65532:65532";

/// An image of one program.
#[derive(Debug)]
struct Image<'a> {
    reference: &'a str,
    binary: &'a Path,
    user: &'a str,
}

/// The programs of this workspace that have an image.
const OWN: [(&str, &str); 2] = [("lockstep.dev/lockstep:dev", "lockstep"), ("lockstep.dev/testapp:dev", "testapp")];

/// The image of a program that a tool of the cluster has, made once per version of the tool.
pub(crate) fn ensure_of_tool(home: &Home, tools: &Tools, tool: Tool) -> Result<PathBuf> {
    let (reference, program, user) = match tool {
        Tool::ArgoRollouts => (ARGO_ROLLOUTS, "rollouts-controller", USER),
        // Port 53 is for root alone; all its other rights are dropped in the manifest.
        Tool::CoreDns => (COREDNS, "coredns", "0:0"),
        Tool::Kubernetes | Tool::Helm => (PAUSE, "pause", USER),
    };
    fs::create_dir_all(home.images())?;
    let directory = tools.directory(tool);
    let key = directory.file_name().context("a tool's directory has no name")?.to_string_lossy();
    let tar = home.images().join(format!("{key}-{program}.tar"));
    if !tar.exists() {
        Image { reference, binary: &directory.join(program), user }.write(&tar)?;
    }
    Ok(tar)
}

/// Builds our programs and makes their images.
pub(crate) fn build_own(profile: Profile, part: &Part) -> Result<Vec<PathBuf>> {
    let directory = repository().join("target/images");
    fs::create_dir_all(&directory)?;
    let programs = cargo::programs(&OWN.map(|(_, program)| program), profile, part)?;
    let make = |((reference, name), program): (&(&str, &str), &PathBuf)| {
        let tar = directory.join(format!("{name}.tar"));
        Image { reference, binary: program, user: USER }.write(&tar)?;
        Ok(tar)
    };
    OWN.iter().zip(&programs).map(make).collect()
}

pub(crate) fn load(cluster: &Cluster, tars: &[PathBuf]) -> Result<()> {
    for tar in tars {
        if !tar.is_file() {
            bail!("there is no image file {}: give the path of an OCI or Docker image in a tar file", tar.display());
        }
        cluster.load_image(tar)?;
        note(&format!("  ✓ loaded {}", tar.display()));
    }
    Ok(())
}

impl Image<'_> {
    fn write(&self, path: &Path) -> Result<()> {
        let unfinished = path.with_extension("unfinished");
        let file = File::create(&unfinished).with_context(|| format!("cannot write {}", unfinished.display()))?;
        let mut archive = tar::Builder::new(BufWriter::new(file));
        self.append_to(&mut archive)?;
        archive.into_inner()?.flush()?;
        fs::rename(&unfinished, path)?;
        Ok(())
    }

    /// The layout is fixed by the OCI image specification; content is addressed by its digest.
    fn append_to(&self, archive: &mut tar::Builder<impl Write>) -> Result<()> {
        let files = self.layer()?;
        let layer = append_blob(archive, "application/vnd.oci.image.layer.v1.tar", &files)?;
        let config = self.config(&digest(&files)).to_string();
        let config = append_blob(archive, "application/vnd.oci.image.config.v1+json", config.as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [layer],
        });
        let mut manifest =
            append_blob(archive, "application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes())?;
        manifest["annotations"] = json!({"io.containerd.image.name": self.reference});
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        append(archive, "index.json", index.to_string().as_bytes(), 0o644)?;
        append(archive, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let program = fs::read(self.binary).with_context(|| format!("cannot read {}", self.binary.display()))?;
        let mut layer = tar::Builder::new(Vec::new());
        append(&mut layer, self.program_name()?, &program, 0o755)?;
        Ok(layer.into_inner()?)
    }

    fn config(&self, layer_digest: &str) -> Value {
        let program = self.program_name().unwrap_or_default();
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Entrypoint": [format!("/{program}")], "User": self.user, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [layer_digest]},
        })
    }

    fn program_name(&self) -> Result<&str> {
        self.binary.file_name().and_then(|name| name.to_str()).context("the program has no name")
    }
}

/// The names that container images use for what Rust calls `x86_64` and `aarch64`.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn append_blob(archive: &mut tar::Builder<impl Write>, media_type: &str, content: &[u8]) -> Result<Value> {
    let digest = digest(content);
    append(archive, &format!("blobs/{}", digest.replace(':', "/")), content, 0o644)?;
    Ok(json!({"mediaType": media_type, "digest": digest, "size": content.len()}))
}

/// No times and no owners: the same binary makes the same image.
fn append(archive: &mut tar::Builder<impl Write>, path: &str, content: &[u8], mode: u32) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_mtime(0);
    archive.append_data(&mut header, path, content).with_context(|| format!("cannot pack {path}"))
}

fn digest(content: &[u8]) -> String {
    let hash = Sha256::digest(content);
    hash.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    fn blobs(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(tar);
        let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().display().to_string(), content)
        };
        archive.entries().unwrap().map(read).collect()
    }

    fn packed() -> Vec<u8> {
        let image = Image { reference: "lockstep.dev/x:dev", binary: Path::new("/proc/self/exe"), user: USER };
        let mut archive = tar::Builder::new(Vec::new());
        image.append_to(&mut archive).unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn every_blob_is_named_by_the_digest_of_its_content() {
        let blobs = blobs(&packed());
        let named = blobs.iter().filter_map(|(path, content)| Some((path.strip_prefix("blobs/sha256/")?, content)));
        let mut count = 0;
        for (name, content) in named {
            assert_eq!(format!("sha256:{name}"), digest(content));
            count += 1;
        }
        assert_eq!(count, 3, "a layer, a config and a manifest");
    }

    #[test]
    fn the_index_leads_to_the_program() {
        let blobs = blobs(&packed());
        let read = |path: &str| serde_json::from_slice::<Value>(&blobs[path]).unwrap();
        let follow = |descriptor: &Value| format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"));
        let index = read("index.json");
        assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "lockstep.dev/x:dev");
        let config = read(&follow(&read(&follow(&index["manifests"][0]))["config"]));
        assert_eq!(config["config"]["Entrypoint"], json!(["/exe"]));
        assert_eq!(config["config"]["User"], USER);
    }

    #[test]
    fn the_same_binary_makes_the_same_image() {
        assert_eq!(digest(&packed()), digest(&packed()));
    }
}
