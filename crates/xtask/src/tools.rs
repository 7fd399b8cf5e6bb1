//! The programs of the local cluster that are built from Go modules.
//!
//! Each folder of `cluster/tools` pins one of them with a go.mod and go.sum of its own. What was built is kept in the
//! home directory under a key of version and content, so every checkout on the machine shares it.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::command;
use crate::home::{Home, repository};
use crate::progress::Part;

/// One folder of `cluster/tools`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Kubernetes,
    Helm,
    CoreDns,
    ArgoRollouts,
}

/// The names by which cluster/tools/kubernetes/main.go knows what to be.
const KUBERNETES_COMPONENTS: [&str; 6] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet"];

/// What is known of a tool.
struct Source {
    tool: Tool,
    /// The folder's name.
    folder: &'static str,
    /// As people write it.
    name: &'static str,
    /// What building it takes: sources, Go's build cache, programs.
    disk_gib: u64,
    /// The module whose version is the tool's version.
    module: &'static str,
    /// What `go install` builds: the tools that go.mod declares, the folder's own `main`, or both.
    packages: &'static [&'static str],
    /// Variables that say the version. A Kubernetes without one makes its clients misjudge what it can do.
    version_variables: &'static [&'static str],
    finish: fn(&Build) -> Result<()>,
}

const SOURCES: [Source; 4] = [
    Source {
        tool: Tool::Kubernetes,
        folder: "kubernetes",
        name: "Kubernetes",
        disk_gib: 4,
        module: "k8s.io/kubernetes",
        packages: &[".", "tool"],
        version_variables: &["k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"],
        finish: finish_kubernetes,
    },
    Source {
        tool: Tool::Helm,
        folder: "helm",
        name: "Helm",
        disk_gib: 2,
        module: "helm.sh/helm/v4",
        packages: &["tool"],
        version_variables: &["helm.sh/helm/v4/internal/version.version"],
        finish: |_| Ok(()),
    },
    Source {
        tool: Tool::CoreDns,
        folder: "coredns",
        name: "CoreDNS",
        disk_gib: 1,
        module: "github.com/coredns/coredns",
        packages: &["."],
        version_variables: &[],
        finish: |_| Ok(()),
    },
    Source {
        tool: Tool::ArgoRollouts,
        folder: "argo-rollouts",
        name: "Argo Rollouts",
        disk_gib: 3,
        module: "github.com/argoproj/argo-rollouts",
        packages: &["tool"],
        version_variables: &["github.com/argoproj/argo-rollouts/utils/version.version"],
        finish: copy_argo_manifest,
    },
];

impl Tool {
    pub(crate) const ALL: [Self; 4] = [Self::Kubernetes, Self::Helm, Self::CoreDns, Self::ArgoRollouts];

    /// By the name of its folder.
    pub(crate) fn by_name(name: &str) -> Result<Self> {
        let known = SOURCES.iter().find(|source| source.folder == name);
        let names = SOURCES.iter().map(|source| source.folder).collect::<Vec<_>>().join(", ");
        known.map(|source| source.tool).with_context(|| format!("there is no tool {name}: there are {names}"))
    }

    /// As people write it.
    pub(crate) fn title(self) -> &'static str {
        self.source().name
    }

    pub(crate) fn disk_gib(self) -> u64 {
        self.source().disk_gib
    }

    fn source(self) -> &'static Source {
        SOURCES.iter().find(|source| source.tool == self).unwrap_or(&SOURCES[0])
    }
}

/// Where each program is, built or not.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    home: Home,
    directories: Vec<(Tool, PathBuf)>,
}

impl Tools {
    /// Those of this checkout.
    pub(crate) fn locate(home: &Home) -> Result<Self> {
        let directory = |source: &Source| Ok((source.tool, home.tools().join(source.cache_key()?)));
        Ok(Self { home: home.clone(), directories: SOURCES.iter().map(directory).collect::<Result<_>>()? })
    }

    /// Those of the needed ones that have to be built first.
    pub(crate) fn missing(&self, needed: &[Tool]) -> Vec<Tool> {
        Tool::ALL.into_iter().filter(|tool| needed.contains(tool) && !self.directory(*tool).exists()).collect()
    }

    pub(crate) fn build(&self, tool: Tool, part: &Part) -> Result<()> {
        tool.source().build(&self.home, self.directory(tool), part)
    }

    pub(crate) fn kubernetes(&self, program: &str) -> PathBuf {
        self.directory(Tool::Kubernetes).join(program)
    }

    pub(crate) fn argo_rollouts(&self, file: &str) -> PathBuf {
        self.directory(Tool::ArgoRollouts).join(file)
    }

    /// A value for `PATH` that finds kubectl, and helm and the plugin where they were built.
    pub(crate) fn search_path(&self) -> String {
        let tools = [Tool::Kubernetes, Tool::Helm, Tool::ArgoRollouts];
        tools.map(|tool| self.directory(tool).display().to_string()).join(":")
    }

    /// The directory of one tool's programs. Its name says tool, version and content.
    pub(crate) fn directory(&self, tool: Tool) -> &Path {
        let found = self.directories.iter().find(|(known, _)| *known == tool);
        found.map_or(Path::new(""), |(_, path)| path)
    }
}

/// A build under way: its sources and the directory that it fills.
struct Build<'a> {
    source: &'a Source,
    home: &'a Home,
    output: &'a Path,
}

impl Source {
    fn folder(&self) -> PathBuf {
        repository().join("cluster/tools").join(self.folder)
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
        Ok(format!("{}-{version}-{digest}", self.folder))
    }

    /// Builds beside the final place and moves there at the end: an interrupted build leaves nothing half done.
    fn build(&self, home: &Home, directory: &Path, part: &Part) -> Result<()> {
        let version = self.version()?;
        let unfinished = directory.with_extension(format!("unfinished-{}", std::process::id()));
        fs::create_dir_all(&unfinished)?;
        let build = Build { source: self, home, output: &unfinished };
        build.compile(&version, part)?;
        (self.finish)(&build)?;
        fs::rename(&unfinished, directory).with_context(|| format!("cannot move {}", unfinished.display()))?;
        part.done();
        Ok(())
    }
}

impl Build<'_> {
    fn go(&self) -> Command {
        let mut go = Command::new("go");
        go.current_dir(self.source.folder())
            .env("CGO_ENABLED", "0")
            .env("GOBIN", self.output)
            .env("GOMODCACHE", self.home.go().join("mod"))
            .env("GOCACHE", self.home.go().join("build"))
            .env("GOFLAGS", "-trimpath -modcacherw")
            // The machine's own Go, or a clear refusal: no other toolchain is downloaded behind the user's back.
            .env("GOTOOLCHAIN", "local");
        go
    }

    fn compile(&self, version: &str, part: &Part) -> Result<()> {
        part.say(format!("{}: downloading sources", self.source.name));
        let list = command::output(self.go().args(["list", "-deps"]).args(self.source.packages))?;
        let packages = list.lines().collect::<HashSet<_>>().len();
        let mut install = self.go();
        install.args(["install", "-v", "-ldflags", &self.source.link_flags(version)]).args(self.source.packages);
        // With -v, go names each package that it compiles on standard error.
        let mut child = install.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot run go")?;
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).lines() {
                said.push(line?);
                if part.is_cancelled() {
                    child.kill()?;
                }
                part.report(self.source.name, said.len(), packages, "packages");
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

/// The one program of all components is called by their names; the pause program, which holds a pod's namespaces, is C.
fn finish_kubernetes(build: &Build) -> Result<()> {
    for component in KUBERNETES_COMPONENTS {
        symlink("kubernetes", build.output.join(component))?;
    }
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
            assert!(key.starts_with(&format!("{}-v", source.folder)), "{key}");
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
