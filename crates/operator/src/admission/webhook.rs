//! What answers when the API server asks about the write of a config, whatever carries question and answer.

use anyhow::Result;
use kube::Client;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::configs::Configs;
use super::review::{self, Request};
use crate::environment::Environment;
use crate::{Options, digest_key};

pub struct ConfigWebhook {
    client: Client,
    environment: Environment,
    /// Where the digest key is.
    namespace: String,
    /// Made with the digest key, which is the API server's to give.
    configs: OnceCell<Configs>,
}

impl ConfigWebhook {
    pub fn new(client: Client, environment: Environment, options: &Options) -> Self {
        Self::in_namespace(client, environment, options.own_namespace.clone())
    }

    pub(super) fn in_namespace(client: Client, environment: Environment, namespace: String) -> Self {
        Self { client, environment, namespace, configs: OnceCell::new() }
    }

    /// Fetches what every answer needs.
    pub async fn prepare(&self) -> Result<()> {
        self.configs().await.map(drop)
    }

    /// `AdmissionReview` in, `AdmissionReview` out. Whatever goes wrong, the write is let through.
    pub async fn answer(&self, review: &Value) -> Value {
        match review::understand(review) {
            Ok(request) => {
                self.admit(&request).await;
                review::allow(&request.uid, &[])
            }
            Err(error) => {
                tracing::warn!(%error, "a question about a config is not understood");
                review::allow("", &[])
            }
        }
    }

    pub(super) async fn admit(&self, request: &Request) {
        match self.configs().await {
            Ok(configs) => configs.admit(request).await,
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "a config's write is let through without us: there is no digest key");
            }
        }
    }

    async fn configs(&self) -> Result<&Configs> {
        let make = async || {
            let key = digest_key::ensure(self.client.clone(), &self.namespace, &self.environment.random).await?;
            Ok(Configs::new(self.client.clone(), self.environment.workshop.clone(), key))
        };
        self.configs.get_or_try_init(make).await
    }
}

#[cfg(test)]
mod tests {
    use lockstep_core::names;
    use serde_json::json;

    use super::super::fixtures::{self, CONFIG_MAP_UPDATE};
    use super::*;
    use crate::environment::Clock;
    use crate::environment::{Process, Randomness, Workshop};
    use crate::fake::Fake;

    fn webhook(fake: &Fake) -> ConfigWebhook {
        let environment = Environment {
            clock: Clock::system(),
            random: Randomness::seeded(1),
            process: Process::system(),
            workshop: Workshop::inline(),
        };
        ConfigWebhook::in_namespace(fake.client(), environment, "lockstep-system".to_owned())
    }

    #[tokio::test]
    async fn a_review_is_answered_without_a_server() {
        let (fake, mut review) = (Fake::default(), fixtures::json(CONFIG_MAP_UPDATE));
        for object in ["object", "oldObject"] {
            review["request"][object]["metadata"]["labels"] = json!({names::VERSIONED: names::ON});
        }
        let answer = webhook(&fake).answer(&review).await;
        assert_eq!(answer["response"], json!({"uid": review["request"]["uid"], "allowed": true}));
        assert_eq!(fake.writes(), ["/api/v1/namespaces/lockstep-system/secrets/lockstep-digest-key"]);
    }

    #[tokio::test]
    async fn what_is_not_understood_is_let_through() {
        let answer = webhook(&Fake::default()).answer(&json!({"request": 1})).await;
        assert_eq!(answer["response"], json!({"uid": "", "allowed": true}));
    }
}
