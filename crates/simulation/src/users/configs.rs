//! What people do with ConfigMaps and Secrets.

use lockstep_core::names;
use serde_json::{Value, json};

use super::{Act, Editing, Person};
use crate::scene::{Config, Content};
use crate::store::{Part, Refusal, Write};

impl Person<'_> {
    pub(super) async fn change_config(&self, act: &Act) -> Result<(), Refusal> {
        match act {
            Act::Edit { config, content, how } => self.edit(*config, *content, how).await,
            Act::TakeBack { config } => {
                let before = {
                    let mut memory = self.users.memory();
                    let contents = memory.contents.entry(*config).or_default();
                    contents.pop();
                    contents.last().copied()
                };
                let first = self.config(*config).content;
                self.edit(*config, before.unwrap_or(first), &Editing::Patch).await
            }
            Act::DeleteConfig { config } => self.delete(&self.config(*config).key).await,
            Act::CreateConfig { config, content } => self.create_config(*config, *content).await,
            Act::ForceConfig { config, content } => {
                let key = self.config(*config).key.clone();
                let _ = self.delete(&key).await;
                self.create_config(*config, *content).await
            }
            Act::OptOut { config, by_ignoring } => {
                let labels =
                    if *by_ignoring { json!({names::IGNORE: names::ON}) } else { json!({names::VERSIONED: null}) };
                self.merge(&self.config(*config).key, json!({"metadata": {"labels": labels}})).await
            }
            Act::OptIn { config } => {
                let labels = json!({names::IGNORE: null, names::VERSIONED: names::ON});
                self.merge(&self.config(*config).key, json!({"metadata": {"labels": labels}})).await
            }
            Act::Choose { config, policy } => {
                let annotations = json!({names::POLICY: policy});
                self.merge(&self.config(*config).key, json!({"metadata": {"annotations": annotations}})).await
            }
            _ => Ok(()),
        }
    }

    fn config(&self, index: usize) -> &Config {
        &self.scene().configs[index]
    }

    async fn create_config(&self, index: usize, content: Content) -> Result<(), Refusal> {
        self.remember(index, content);
        self.create(self.config(index).manifest(content)).await
    }

    async fn edit(&self, index: usize, content: Content, how: &Editing) -> Result<(), Refusal> {
        let config = self.config(index);
        self.remember(index, content);
        let data = content.data(config.key.kind);
        // A name is for one content: whoever changes the content names it anew, or leaves that to the operator.
        let annotations = match how {
            Editing::Named { version, reason } => json!({names::VERSION: version, names::REASON: reason}),
            Editing::Patch | Editing::Replace => json!({names::VERSION: null, names::REASON: null}),
        };
        if *how == Editing::Replace {
            let object = self.replaced(config, content);
            return self.write(Write::Replace { key: config.key.clone(), object, part: Part::Object }).await;
        }
        self.merge(&config.key, json!({"metadata": {"annotations": annotations}, "data": data})).await
    }

    /// The manifest, with the labels and annotations that people gave the object since.
    fn replaced(&self, config: &Config, content: Content) -> Value {
        let mut object = config.manifest(content);
        if let Some(now) = self.get(&config.key) {
            object["metadata"]["labels"] = now.value["metadata"]["labels"].clone();
        }
        object
    }

    fn remember(&self, index: usize, content: Content) {
        self.users.memory().contents.entry(index).or_default().push(content);
    }
}
