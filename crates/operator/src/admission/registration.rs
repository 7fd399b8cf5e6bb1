//! Keeps our identity in its Secret, and tells the API server how to reach us and whom to trust: in the webhook configurations that the
//! chart made. Every replica does it, each write names what it is based on, and so whoever is first decides for all.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use lockstep_core::names;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::certificates::{Endpoint, Identity, IdentityError};
use super::server::path;
use super::serving::Serving;
use crate::environment::Environment;

/// The Secret with the certificate, in the operator's own namespace.
const SECRET: &str = "lockstep-webhook";
/// The webhook configurations that the chart makes, whatever their kind.
const CONFIGURATION: &str = "lockstep";

/// How often we look whether all is still as it should be.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// How long we wait before we look again after a change: every API server has read the new authority by then.
const SPREAD: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(5);
/// How long we wait before we look at what another replica just wrote.
const AFTER_ANOTHER: Duration = Duration::from_millis(200);
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

pub struct Registration {
    pub client: Client,
    pub environment: Environment,
    pub namespace: String,
    /// The name by which the API server calls us.
    pub host: String,
    /// What it asks us.
    pub endpoints: Vec<Endpoint>,
}

/// What changes objects must come before their validation; what only has to know of them comes after it.
fn configuration_of(endpoint: Endpoint) -> ApiResource {
    match endpoint {
        Endpoint::Admit => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
        Endpoint::Configs => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
    }
}

impl Registration {
    /// Keeps everything up for ever.
    pub async fn keep(&self, serving: &Serving) {
        loop {
            let pause = match timeout(REQUEST_LIMIT, self.refresh(serving, self.environment.clock.now())).await {
                Ok(Ok(pause)) => pause,
                Ok(Err(error)) => {
                    tracing::warn!(error = format!("{error:#}"), "the webhook's registration is not up to date");
                    RETRY
                }
                Err(_) => {
                    tracing::warn!("the webhook's registration was not checked: the API server does not answer");
                    RETRY
                }
            };
            sleep(pause).await;
        }
    }

    /// A new certificate is served only once the API server trusts it: the old one is good for weeks yet.
    async fn refresh(&self, serving: &Serving, now: Timestamp) -> Result<Duration> {
        let Some(identity) = self.identity(serving, now).await? else { return Ok(AFTER_ANOTHER) };
        if serving.is_empty() {
            serving.set(&identity)?;
        }
        let mut is_news = false;
        for endpoint in &self.endpoints {
            is_news |= self.register(&identity, *endpoint).await?;
        }
        if is_news {
            return Ok(SPREAD);
        }
        serving.set(&identity)?;
        Ok(CHECK_INTERVAL)
    }

    /// The identity in the Secret, which is made or renewed if need be. None if another replica was about it at the same time.
    async fn identity(&self, serving: &Serving, now: Timestamp) -> Result<Option<Identity>> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let doing = |what: &str| format!("cannot {what} Secret {SECRET} in {}", self.namespace);
        let found = api.get_opt(SECRET).await.with_context(|| doing("read"))?;
        let known = found.as_ref().and_then(|secret| self.read(secret));
        if let Some(identity) = known.as_ref().filter(|identity| !identity.needs_renewal(now)) {
            return Ok(Some(identity.clone()));
        }
        // If the Secret was deleted, the authority and path that are in use go on being good.
        let previous = known.or_else(|| serving.identity());
        let identity = Identity::issue(&self.host, previous.as_ref(), now, &self.environment.random)?;
        let (params, version) = (post_params(), found.and_then(|secret| secret.metadata.resource_version));
        let secret = identity.to_secret(SECRET, version.clone());
        let written = match version {
            Some(_) => api.replace(SECRET, &params, &secret).await,
            None => api.create(&params, &secret).await,
        };
        if unless_another_was_first(written).with_context(|| doing("write"))?.is_none() {
            return Ok(None);
        }
        tracing::info!(secret = SECRET, expires = %identity.not_after(), "a new certificate of the webhook");
        Ok(Some(identity))
    }

    fn read(&self, secret: &Secret) -> Option<Identity> {
        let warn = |error: &IdentityError| {
            let namespace = &self.namespace;
            tracing::warn!(%error, namespace, "Secret {SECRET} cannot be used, a new certificate takes its place");
        };
        Identity::read(secret).inspect_err(warn).ok()
    }

    /// True if the configuration had to be changed. As a dynamic object: fields that we do not know must survive.
    async fn register(&self, identity: &Identity, endpoint: Endpoint) -> Result<bool> {
        let resource = configuration_of(endpoint);
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let doing = |what: &str| format!("cannot {what} {} {CONFIGURATION}", resource.kind);
        let found = api.get_opt(CONFIGURATION).await.with_context(|| doing("read"))?;
        let mut configuration = found.with_context(|| {
            format!("there is no {} {CONFIGURATION}: upgrade the chart, which makes it", resource.kind)
        })?;
        let Some(webhooks) = registered(&configuration.data["webhooks"], identity, endpoint) else { return Ok(false) };
        configuration.data["webhooks"] = webhooks;
        let written = api.replace(CONFIGURATION, &post_params(), &configuration).await;
        if unless_another_was_first(written).with_context(|| doing("write"))?.is_some() {
            tracing::info!(configuration = resource.kind, "the API server was told which certificate to trust");
        }
        Ok(true)
    }
}

/// The webhooks with our authority and path; none if they have them already.
fn registered(webhooks: &Value, identity: &Identity, endpoint: Endpoint) -> Option<Value> {
    let mut wanted = webhooks.clone();
    for webhook in wanted.as_array_mut().into_iter().flatten() {
        webhook["clientConfig"]["caBundle"] = json!(ByteString(identity.authorities.clone().into_bytes()));
        if webhook["clientConfig"]["service"].is_object() {
            webhook["clientConfig"]["service"]["path"] = json!(path(identity.token(endpoint), endpoint));
        }
    }
    (wanted != *webhooks).then_some(wanted)
}

/// A write that names what it is based on is refused if somebody wrote since.
fn unless_another_was_first<T>(written: kube::Result<T>) -> kube::Result<Option<T>> {
    match written {
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(None),
        written => written.map(Some),
    }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    fn identity() -> Identity {
        Identity::issued("lockstep-webhook.lockstep-system.svc", None, "2026-11-15T12:00:00Z".parse().unwrap()).unwrap()
    }

    fn webhooks() -> Value {
        let service = json!({"name": "lockstep-webhook", "namespace": "lockstep-system", "port": 443});
        json!([{"name": "some.lockstep.dev", "clientConfig": {"service": service}, "aFieldOfTheFuture": 1}])
    }

    #[test]
    fn every_webhook_gets_our_authority_and_the_path_of_its_endpoint() {
        let identity = identity();
        for endpoint in [Endpoint::Admit, Endpoint::Configs] {
            let webhook = registered(&webhooks(), &identity, endpoint).unwrap()[0].take();
            let expected = path(identity.token(endpoint), endpoint);
            assert_eq!(webhook["clientConfig"]["service"]["path"], expected);
            let bundle: ByteString = serde_json::from_value(webhook["clientConfig"]["caBundle"].clone()).unwrap();
            assert_eq!(bundle.0, identity.authorities.as_bytes());
            assert_eq!(webhook["aFieldOfTheFuture"], 1);
        }
    }

    #[test]
    fn what_is_registered_already_is_not_written_again() {
        let identity = identity();
        let wanted = registered(&webhooks(), &identity, Endpoint::Configs).unwrap();
        assert_eq!(registered(&wanted, &identity, Endpoint::Configs), None);
        let renewed = Identity::issued("host", Some(&identity), "2027-02-15T12:00:00Z".parse().unwrap()).unwrap();
        assert!(registered(&wanted, &renewed, Endpoint::Configs).is_some());
    }

    const SECRET_PATH: &str = "/api/v1/namespaces/lockstep-system/secrets/lockstep-webhook";
    const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/lockstep";
    const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/lockstep";

    fn now() -> Timestamp {
        "2026-11-15T12:00:00Z".parse().unwrap()
    }

    fn later(days: i64) -> Timestamp {
        now() + jiff::SignedDuration::from_hours(24 * days)
    }

    /// A cluster with the chart just installed.
    fn installed() -> Fake {
        let fake = Fake::default();
        for (path, kind) in [(MUTATING, "MutatingWebhookConfiguration"), (VALIDATING, "ValidatingWebhookConfiguration")]
        {
            let (api_version, metadata) = ("admissionregistration.k8s.io/v1", json!({"name": "lockstep"}));
            let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "webhooks": webhooks()});
            fake.put(path, object);
        }
        fake
    }

    fn replica(fake: &Fake) -> (Registration, Serving) {
        let (namespace, host) = ("lockstep-system".to_owned(), "lockstep-webhook.lockstep-system.svc".to_owned());
        let endpoints = vec![Endpoint::Admit, Endpoint::Configs];
        (
            Registration { client: fake.client(), environment: Environment::system(), namespace, host, endpoints },
            Serving::default(),
        )
    }

    fn trusted(fake: &Fake) -> String {
        let configuration = fake.get(VALIDATING).unwrap();
        let bundle = configuration["webhooks"][0]["clientConfig"]["caBundle"].clone();
        String::from_utf8(serde_json::from_value::<ByteString>(bundle).unwrap().0).unwrap()
    }

    #[tokio::test]
    async fn the_first_replica_makes_the_certificate_and_the_others_take_it() {
        let fake = installed();
        let ((first, serving), (second, serving_too)) = (replica(&fake), replica(&fake));
        assert_eq!(first.refresh(&serving, now()).await.unwrap(), SPREAD);
        assert_eq!(fake.writes(), [SECRET_PATH, MUTATING, VALIDATING]);
        assert_eq!(second.refresh(&serving_too, now()).await.unwrap(), CHECK_INTERVAL);
        assert_eq!(first.refresh(&serving, now()).await.unwrap(), CHECK_INTERVAL);
        assert!(fake.writes().is_empty());
        assert!(serving.identity() == serving_too.identity());
        assert_eq!(trusted(&fake), serving.identity().unwrap().authorities);
    }

    #[tokio::test]
    async fn a_renewed_certificate_is_served_after_it_is_trusted() {
        let fake = installed();
        let (replica, serving) = replica(&fake);
        replica.refresh(&serving, now()).await.unwrap();
        let old = serving.identity().unwrap();
        fake.writes();
        assert_eq!(replica.refresh(&serving, later(61)).await.unwrap(), SPREAD);
        assert_eq!(fake.writes(), [SECRET_PATH, MUTATING, VALIDATING]);
        assert!(serving.identity().unwrap() == old, "API servers may not trust the new one yet");
        assert!(trusted(&fake).contains(&old.authorities.trim_end()[..100]));
        assert_eq!(replica.refresh(&serving, later(61)).await.unwrap(), CHECK_INTERVAL);
        assert!(serving.identity().unwrap() != old);
    }

    #[tokio::test]
    async fn what_was_deleted_or_damaged_is_made_anew_with_the_same_path() {
        let fake = installed();
        let (replica, serving) = replica(&fake);
        replica.refresh(&serving, now()).await.unwrap();
        let token = serving.identity().unwrap().token(Endpoint::Admit).to_owned();
        fake.delete(SECRET_PATH);
        assert_eq!(replica.refresh(&serving, now()).await.unwrap(), SPREAD);
        fake.put(SECRET_PATH, json!({"metadata": {"name": "lockstep-webhook"}, "data": {"tls.crt": "eA=="}}));
        assert_eq!(replica.refresh(&serving, now()).await.unwrap(), SPREAD);
        replica.refresh(&serving, now()).await.unwrap();
        assert_eq!(serving.identity().unwrap().token(Endpoint::Admit), token);
    }

    #[tokio::test]
    async fn without_the_charts_configuration_the_error_says_what_to_do_and_the_server_is_up() {
        let (replica, serving) = replica(&Fake::default());
        let error = replica.refresh(&serving, now()).await.unwrap_err().to_string();
        assert!(error.contains("upgrade the chart"), "{error}");
        assert!(!serving.is_empty());
    }

    #[test]
    fn a_configuration_without_webhooks_is_left_alone() {
        assert_eq!(registered(&Value::Null, &identity(), Endpoint::Admit), None);
        assert_eq!(registered(&json!([]), &identity(), Endpoint::Admit), None);
    }
}
