//! All commands that the documents show, run as their readers run them. How a document says what is run, and with what, is in
//! `lockstep_testing::documents`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lockstep_testing::documents::{self, Block, Chapter, Start, answers, chapters};
use lockstep_testing::manifests::testapp_image;
use lockstep_testing::{SHORT, Scenario, command_line, eventually, scenario};
use tokio::process::Command;
use tokio::time::timeout;

/// How long one block may take.
const PATIENCE: Duration = Duration::from_secs(180);
/// What commands of the documents find in their working directory.
const FOLDERS: [&str; 3] = ["charts", "deploy", "examples"];
/// Each has a test below.
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "docs/cli.md",
    "docs/concepts.md",
    "docs/gitops.md",
    "docs/migration.md",
    "docs/operations.md",
    "docs/policies.md",
    "docs/security.md",
];

#[test]
fn no_document_is_forgotten() {
    assert_eq!(documents::names().unwrap(), DOCUMENTS);
}

#[tokio::test]
async fn readme() {
    run_document("README.md", "readme").await;
}

#[tokio::test]
async fn cli() {
    run_document("docs/cli.md", "cli").await;
}

#[tokio::test]
async fn concepts() {
    run_document("docs/concepts.md", "concepts").await;
}

#[tokio::test]
async fn gitops() {
    run_document("docs/gitops.md", "gitops").await;
}

#[tokio::test]
async fn migration() {
    run_document("docs/migration.md", "migration").await;
}

#[tokio::test]
async fn operations() {
    run_document("docs/operations.md", "operations").await;
}

#[tokio::test]
async fn policies() {
    run_document("docs/policies.md", "policies").await;
}

#[tokio::test]
async fn security() {
    run_document("docs/security.md", "security").await;
}

async fn run_document(document: &'static str, name: &str) {
    let read = documents::read(document).and_then(|text| chapters(&text));
    for chapter in read.unwrap_or_else(|error| panic!("{document}: {error:#}")) {
        if chapter.blocks.iter().all(|block| block.not_run.is_some()) {
            continue;
        }
        scenario(&format!("docs-{name}"), |stage| async move {
            let desk = Desk::set(stage).await?;
            let outcome = desk.run(&chapter).await.context(document);
            fs::remove_dir_all(&desk.folder)?;
            outcome
        })
        .await;
    }
}

/// Where a reader sits: a folder, a kubeconfig whose namespace is theirs, and the tools.
struct Desk {
    stage: Scenario,
    folder: PathBuf,
    search_path: String,
}

impl Desk {
    async fn set(stage: Scenario) -> Result<Self> {
        let folder = std::env::temp_dir().join(&stage.namespace);
        fs::create_dir(&folder)?;
        for name in FOLDERS.into_iter().filter(|name| documents::path(name).exists()) {
            symlink(documents::path(name).canonicalize()?, folder.join(name))?;
        }
        let tools = command_line().await?.parent().map(Path::to_owned).context("the command is in no folder")?;
        let search_path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
        let own = stage.kubectl(&["config", "view", "--raw", "--flatten"]).await?;
        fs::write(folder.join("kubeconfig"), own)?;
        let desk = Self { stage, folder, search_path };
        let namespace = format!("kubectl config set-context --current --namespace {}", desk.stage.namespace);
        desk.expect(0, &namespace).await?;
        Ok(desk)
    }

    async fn run(&self, chapter: &Chapter) -> Result<()> {
        match chapter.starts_with {
            Start::Empty => {}
            Start::Shop => self.open_the_shop().await?,
            Start::Demo => self.leave_what_the_demo_leaves().await?,
        }
        for block in &chapter.blocks {
            self.run_block(block).await.with_context(|| format!("line {}", block.line))?;
        }
        Ok(())
    }

    async fn run_block(&self, block: &Block) -> Result<()> {
        if let Some(file) = &block.file {
            fs::write(self.folder.join(file), &block.text)?;
        }
        if block.not_run.is_some() {
            return Ok(());
        }
        for command in &block.first {
            self.expect(0, command).await?;
        }
        match block.language.as_str() {
            "sh" => {
                // Where the demo's readers have a namespace of this name, we have ours.
                let script = block.text.replace("--namespace demo", &format!("--namespace {}", self.stage.namespace));
                let script = block.with.iter().fold(script, |script, more| format!("{} {more}", script.trim_end()));
                let said = self.expect(block.exit, &script).await?;
                block.answer.as_ref().map_or(Ok(()), |shown| answers(shown, &said))
            }
            "yaml" => {
                self.stage.kubectl_with_input(&["apply", "--dry-run=server", "-f", "-"], &block.text).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// What a script says, if it ends with this code.
    async fn expect(&self, code: i32, script: &str) -> Result<String> {
        let mut shell = Command::new("bash");
        shell.args(["-eu", "-o", "pipefail", "-c", &format!("exec 2>&1\n{script}")]);
        shell
            .current_dir(&self.folder)
            .env("KUBECONFIG", self.folder.join("kubeconfig"))
            .env("PATH", &self.search_path);
        shell.stdin(Stdio::null()).kill_on_drop(true);
        let Ok(output) = timeout(PATIENCE, shell.output()).await else {
            bail!("it does not end within {} s:\n{script}", PATIENCE.as_secs());
        };
        let (output, said) = output.map(|output| (output.status, output.stdout))?;
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(output.code() == Some(code), "it ended with {output} and not with {code}:\n{script}\nIt said:\n{said}");
        Ok(said)
    }

    async fn open_the_shop(&self) -> Result<()> {
        let shop = documents::read("examples/shop.yaml")?.replace("lockstep.dev/testapp:dev", &testapp_image());
        // What is shown must not depend on how patient its policies are.
        self.stage
            .apply(&shop.replace("bakeSeconds: 10", "bakeSeconds: 2").replace("bakeSeconds: 5", "bakeSeconds: 0"))
            .await?;
        self.stage.released("configmap/shop", "1.0.0").await?;
        self.pods_are_ready().await
    }

    /// The demo's own steps, in their order.
    async fn leave_what_the_demo_leaves(&self) -> Result<()> {
        self.open_the_shop().await?;
        self.change(r#"{"data": {"PRICE": "12"}}"#, 1, "Succeeded").await?;
        self.change(r#"{"data": {"PRICE": "-1", "BEHAVIOR": "crash"}}"#, 2, "RolledBack").await?;
        self.stage.kubectl(&["annotate", "configmap", "shop", "lockstep.dev/policy=careful"]).await?;
        self.change(r#"{"data": {"PRICE": "14", "BEHAVIOR": "healthy"}}"#, 3, "Succeeded").await?;
        self.stage.kubectl(&["rollout", "undo", "deployment/shop"]).await?;
        self.stage.kubectl(&["rollout", "status", "deployment/shop", "--timeout=300s"]).await.map(drop)
    }

    async fn change(&self, patch: &str, number: u32, end: &str) -> Result<()> {
        self.stage.kubectl(&["patch", "configmap", "shop", "--patch", patch]).await?;
        let release = format!("release/configmap-shop-{number}");
        self.stage.kubectl(&["wait", "--for=create", &release, "--timeout=300s"]).await?;
        let ended = format!("--for=jsonpath={{.status.phase}}={end}");
        self.stage.kubectl(&["wait", &ended, &release, "--timeout=300s"]).await.map(drop)
    }

    async fn pods_are_ready(&self) -> Result<()> {
        eventually("the shop's pods", SHORT, async || self.stage.ready_pods("part-of=shop", 5).await.map(drop)).await
    }
}
