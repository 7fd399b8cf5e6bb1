//! Stories: what people do, and how it ends, told once and played twice: on the simulated cluster, and on a real one. Only if both end alike
//! can be believed what the simulation finds.

mod objects;
mod picture;
mod told;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

pub use told::{all, for_hours};

/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_secs(1);
/// For how long the end must stay as it is.
const STILL: Duration = Duration::from_secs(4);

pub struct Story {
    /// What is there at first, in this order.
    pub given: Vec<Value>,
    pub steps: Vec<Step>,
    /// The picture at the end: a line for each release, config and workload.
    pub ends: &'static str,
}

/// Objects are named as kubectl does it: `deployment/web`.
pub enum Step {
    /// Writes objects, as `kubectl apply --server-side` does.
    Apply(Vec<Value>),
    /// A merge patch.
    Patch(&'static str, Value),
    Delete(&'static str),
    /// Back to the template before this one, as `kubectl rollout undo` does it.
    Undo(&'static str),
    /// Until the picture has this line.
    Until(&'static str),
    /// Nobody does anything for so long.
    Pass(Duration),
}

/// Plays a story in a namespace that is empty.
pub async fn play(story: &Story, client: &Client, namespace: &str, image: &str) -> Result<()> {
    let player = Player { client, namespace, image };
    for object in &story.given {
        player.apply(object).await?;
        // A workload that is written before its config is adopted would have no pins.
        if object["kind"] == "ConfigMap" {
            let adopted = format!("config {} 1.0.0", object["metadata"]["name"].as_str().unwrap_or_default());
            player.until(&adopted, |picture| picture.lines().any(|line| line == adopted)).await?;
        }
    }
    for (number, step) in story.steps.iter().enumerate() {
        player.take(step).await.with_context(|| format!("step {} of {}", number + 1, story.steps.len()))?;
    }
    player.ends_with(story.ends).await
}

struct Player<'a> {
    client: &'a Client,
    namespace: &'a str,
    /// Of the test app.
    image: &'a str,
}

impl Player<'_> {
    async fn take(&self, step: &Step) -> Result<()> {
        match step {
            Step::Apply(objects) => {
                for object in objects {
                    self.apply(object).await?;
                }
                Ok(())
            }
            Step::Patch(name, patch) => {
                let place = objects::path(self.namespace, name)?;
                self.send("PATCH", &place, "application/merge-patch+json", patch).await.map(drop)
            }
            Step::Delete(name) => {
                let path = objects::path(self.namespace, name)?;
                let options = json!({"propagationPolicy": "Background"});
                self.send("DELETE", &path, "application/json", &options).await.map(drop)
            }
            Step::Undo(name) => self.undo(name).await,
            Step::Pass(time) => {
                sleep(*time).await;
                Ok(())
            }
            Step::Until(line) => {
                self.until(line, |picture| picture.lines().any(|found| found == *line)).await.map(drop)
            }
        }
    }

    async fn apply(&self, object: &Value) -> Result<()> {
        let object = objects::with_image(object, self.image);
        let (kind, name) = (object["kind"].as_str().unwrap_or_default(), object["metadata"]["name"].as_str());
        let name = format!("{}/{}", kind.to_lowercase(), name.unwrap_or_default());
        let path = objects::path(self.namespace, &name)? + "?fieldManager=stories&force=true";
        self.send("PATCH", &path, "application/apply-patch+yaml", &object).await.map(drop)
    }

    async fn undo(&self, name: &str) -> Result<()> {
        let place = objects::path(self.namespace, name)?;
        let deployment = self.get(&place).await?;
        let revision = |set: &Value| -> u64 {
            let text = set["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str();
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let mut sets = self.list("replicaset").await?;
        sets.retain(|set| set["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]);
        sets.sort_by_key(|set| std::cmp::Reverse(revision(set)));
        let mut template = sets.get(1).context("there is nothing to go back to")?["spec"]["template"].clone();
        if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
            labels.remove("pod-template-hash");
        }
        let patch = json!([{"op": "replace", "path": "/spec/template", "value": template}]);
        self.send("PATCH", &place, "application/json-patch+json", &patch).await.map(drop)
    }

    async fn until(&self, what: &str, is_there: impl Fn(&str) -> bool) -> Result<String> {
        let start = Instant::now();
        loop {
            let picture = picture::draw(self).await?;
            if is_there(&picture) {
                return Ok(picture);
            }
            if start.elapsed() >= PATIENCE {
                bail!("it never came to\n  {what}\nbut to\n{}", indented(&picture));
            }
            sleep(LOOK).await;
        }
    }

    /// The picture comes to this, and stays so.
    async fn ends_with(&self, end: &str) -> Result<()> {
        let wanted: String = end.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
        self.until(&wanted, |picture| picture == wanted).await?;
        sleep(STILL).await;
        let picture = picture::draw(self).await?;
        ensure!(picture == wanted, "it was\n{}\nand did not stay so:\n{}", indented(&wanted), indented(&picture));
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let request = http::Request::get(path).body(Vec::new())?;
        self.client.request(request).await.with_context(|| format!("cannot read {path}"))
    }

    async fn list(&self, kind: &str) -> Result<Vec<Value>> {
        let mut found = self.get(&objects::folder(self.namespace, kind)?).await?;
        let items = found["items"].take();
        serde_json::from_value(items).with_context(|| format!("the list of {kind}s is none"))
    }

    async fn send(&self, method: &str, path: &str, content: &str, body: &Value) -> Result<Value> {
        let request = http::Request::builder().method(method).uri(path).header("content-type", content);
        let request = request.body(serde_json::to_vec(body)?)?;
        self.client.request(request).await.with_context(|| format!("{method} {path} failed"))
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
