//! The programs of the local cluster that are built from Go modules.
//!
//! Each folder of `cluster/tools` pins one of them with a go.mod and go.sum of its own. What was built is kept in the
//! home directory under a key of version and content, so every checkout on the machine shares it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::command;
use crate::home::{Home, repository};
use crate::progress::Step;
use crate::requirements;

/// Free space that building all of them needs: sources, Go's build cache, binaries.
const BUILD_SPACE_GIB: u64 = 12;

/// One folder of `cluster/tools`.
struct Source {
    name: &'static str,
    /// The module whose version is the tool's version.
    module: &'static str,
    /// What `go install` builds: the tools that go.mod declares, or the folder's own `main`.
    package: &'static str,
    /// Variables that say the version. A Kubernetes without one makes its clients misjudge what it can do.
    version_variables: &'static [&'static str],
    finish: fn(&Build) -> Result<()>,
}

const SOURCES: [Source; 4] = [
    Source {
        name: "kubernetes",
        module: "k8s.io/kubernetes",
        package: "tool",
        version_variables: &["k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"],
        finish: finish_kubernetes,
    },
    Source {
        name: "helm",
        module: "helm.sh/helm/v4",
        package: "tool",
        version_variables: &["helm.sh/helm/v4/internal/version.version"],
        finish: |_| Ok(()),
    },
    Source {
        name: "coredns",
        module: "github.com/coredns/coredns",
        package: ".",
        version_variables: &[],
        finish: |_| Ok(()),
    },
    Source {
        name: "argo-rollouts",
        module: "github.com/argoproj/argo-rollouts",
        package: "tool",
        version_variables: &["github.com/argoproj/argo-rollouts/utils/version.version"],
        finish: copy_argo_manifest,
    },
];

/// The built tools: where each program is.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    directories: Vec<(&'static str, PathBuf)>,
}

impl Tools {
    /// Builds what is missing, with progress.
    pub(crate) fn ensure(home: &Home) -> Result<Self> {
        let tools = Self::locate(home)?;
        let missing: Vec<_> = SOURCES.iter().zip(&tools.directories).filter(|(_, (_, path))| !path.exists()).collect();
        if !missing.is_empty() {
            requirements::go_toolchain()?;
            requirements::free_space(home.root(), BUILD_SPACE_GIB)?;
        }
        for (source, (_, directory)) in missing {
            source.build(directory)?;
        }
        Ok(tools)
    }

    /// Where the tools of this checkout are, built or not.
    pub(crate) fn locate(home: &Home) -> Result<Self> {
        let directory = |source: &Source| Ok((source.name, home.tools().join(source.cache_key()?)));
        Ok(Self { directories: SOURCES.iter().map(directory).collect::<Result<_>>()? })
    }

    pub(crate) fn kubernetes(&self, program: &str) -> PathBuf {
        self.directory("kubernetes").join(program)
    }

    pub(crate) fn argo_rollouts(&self, file: &str) -> PathBuf {
        self.directory("argo-rollouts").join(file)
    }

    /// A value for `PATH` that finds kubectl, helm and the plugin first.
    pub(crate) fn search_path(&self) -> String {
        let names = ["kubernetes", "helm", "argo-rollouts"];
        names.map(|name| self.directory(name).display().to_string()).join(":")
    }

    /// The directory of one tool's programs. Its name says tool, version and content.
    pub(crate) fn directory(&self, name: &str) -> &Path {
        let found = self.directories.iter().find(|(known, _)| *known == name);
        found.map_or(Path::new(""), |(_, path)| path)
    }
}

/// A build under way: its sources and the directory that it fills.
struct Build<'a> {
    source: &'a Source,
    output: &'a Path,
}

impl Source {
    fn folder(&self) -> PathBuf {
        repository().join("cluster/tools").join(self.name)
    }

    fn version(&self) -> Result<String> {
        let path = self.folder().join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        required_version(&text, self.module)
            .with_context(|| format!("{} requires no version of {}", path.display(), self.module))
    }

    fn link_flags(&self, version: &str) -> String {
        self.version_variables.iter().fold("-s -w".to_owned(), |flags, name| flags + &format!(" -X {name}={version}"))
    }

    /// `kubernetes-v1.36.4-1f2e3d4c`: anything that changes the build changes the key.
    fn cache_key(&self) -> Result<String> {
        let version = self.version()?;
        let mut hash = Sha256::new();
        hash.update(self.link_flags(&version));
        for file in ["go.mod", "go.sum", "main.go"] {
            let path = self.folder().join(file);
            if path.exists() {
                hash.update(fs::read(path)?);
            }
        }
        let digest: String = hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{}-{version}-{digest}", self.name))
    }

    /// Builds beside the final place and moves there at the end: an interrupted build leaves nothing half done.
    fn build(&self, directory: &Path) -> Result<()> {
        let version = self.version()?;
        let mut step = Step::start(format!("build {} {version}", self.name));
        let unfinished = directory.with_extension(format!("unfinished-{}", std::process::id()));
        fs::create_dir_all(&unfinished)?;
        let build = Build { source: self, output: &unfinished };
        build.compile(&version, &mut step)?;
        (self.finish)(&build)?;
        fs::rename(&unfinished, directory).with_context(|| format!("cannot move {}", unfinished.display()))?;
        step.done("");
        Ok(())
    }
}

impl Build<'_> {
    fn go(&self) -> Command {
        let mut go = Command::new("go");
        go.current_dir(self.source.folder())
            .env("CGO_ENABLED", "0")
            .env("GOBIN", self.output)
            .env("GOFLAGS", "-trimpath")
            // The machine's own Go, or a clear refusal: no other toolchain is downloaded behind the user's back.
            .env("GOTOOLCHAIN", "local");
        go
    }

    fn compile(&self, version: &str, step: &mut Step) -> Result<()> {
        step.report("(downloading sources)");
        let packages = command::output(self.go().args(["list", "-deps", self.source.package]))?.lines().count();
        let mut install = self.go();
        install.args(["install", "-v", "-ldflags", &self.source.link_flags(version), self.source.package]);
        // With -v, go names each package that it compiles on standard error.
        let mut child = install.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot run go")?;
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).lines() {
                said.push(line?);
                step.report(&format!("({} of at most {packages} packages)", said.len()));
            }
        }
        if !child.wait()?.success() {
            bail!("building {} failed:\n{}", self.source.name, command::last_lines(&said.join("\n"), 20));
        }
        Ok(())
    }

    fn module_directory(&self) -> Result<PathBuf> {
        let directory = command::output(self.go().args(["list", "-m", "-f", "{{.Dir}}", self.source.module]))?;
        Ok(PathBuf::from(directory.trim()))
    }
}

/// etcd's main package is called `server`; the pause program, which holds a pod's namespaces, is C.
fn finish_kubernetes(build: &Build) -> Result<()> {
    fs::rename(build.output.join("server"), build.output.join("etcd"))?;
    let source = build.module_directory()?.join("build/pause/linux/pause.c");
    let mut compile = Command::new("cc");
    compile.args(["-Os", "-static", "-s", "-DVERSION=lockstep", "-o"]).arg(build.output.join("pause")).arg(source);
    command::output(&mut compile)?;
    Ok(())
}

/// The manifest as Argo publishes it, but for the image: ours is built here and never pulled.
fn copy_argo_manifest(build: &Build) -> Result<()> {
    let path = build.module_directory()?.join("manifests/install.yaml");
    let manifest = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    fs::write(build.output.join("install.yaml"), use_local_image(&manifest))?;
    Ok(())
}

fn use_local_image(manifest: &str) -> String {
    let local = |line: &str| match line.split_once("image: ") {
        Some((indent, _)) => format!("{indent}image: {}", crate::image::ARGO_ROLLOUTS),
        None => line.replace("imagePullPolicy: Always", "imagePullPolicy: Never"),
    };
    manifest.lines().map(|line| local(line) + "\n").collect()
}

fn required_version(go_mod: &str, module: &str) -> Option<String> {
    let words = go_mod.lines().map(|line| line.trim_start_matches("require").split_whitespace().collect::<Vec<_>>());
    words.filter(|words| words.len() >= 2 && words[0] == module).map(|words| words[1].to_owned()).find(|v| v != "=>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pinned_tool_has_a_version_and_a_key_that_shows_it() {
        for source in &SOURCES {
            let key = source.cache_key().unwrap();
            assert!(key.starts_with(&format!("{}-v", source.name)), "{key}");
        }
    }

    #[test]
    fn versions_are_read_from_single_lines_and_blocks_but_not_from_replacements() {
        let text = "require a.b/c v1.2.3\nrequire (\n\td.e/f v4.5.6 // indirect\n)\nreplace g.h/i => g.h/i v9.9.9\n";
        assert_eq!(required_version(text, "a.b/c").unwrap(), "v1.2.3");
        assert_eq!(required_version(text, "d.e/f").unwrap(), "v4.5.6");
        assert_eq!(required_version(text, "g.h/i"), None);
    }

    #[test]
    fn argo_runs_from_the_image_built_here() {
        let changed = use_local_image("      - image: elsewhere/argo:v1\n        imagePullPolicy: Always\n");
        assert!(!changed.contains("elsewhere") && changed.contains("imagePullPolicy: Never"), "{changed}");
    }
}
