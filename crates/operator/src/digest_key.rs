//! The key of Secret digests: made once per installation and kept in a Secret of its own.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use lockstep_core::DigestKey;

use crate::environment::Randomness;

const NAME: &str = "lockstep-digest-key";
const FIELD: &str = "key";
const LENGTH: usize = 32;

pub async fn ensure(client: Client, namespace: &str, random: &Randomness) -> Result<DigestKey> {
    let api: Api<Secret> = Api::namespaced(client, namespace);
    if let Some(found) = api.get_opt(NAME).await.with_context(|| format!("cannot read Secret {NAME} in {namespace}"))? {
        return read(&found, namespace);
    }
    let mut key = vec![0; LENGTH];
    random.fill(&mut key).map_err(|error| anyhow::anyhow!("no randomness for Secret {NAME}: {error}"))?;
    let secret = Secret {
        metadata: ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() },
        immutable: Some(true),
        data: Some(BTreeMap::from([(FIELD.to_owned(), ByteString(key))])),
        ..Secret::default()
    };
    match api.create(&PostParams::default(), &secret).await {
        Ok(created) => read(&created, namespace),
        // Another replica was first: its key is the one.
        Err(kube::Error::Api(status)) if status.is_already_exists() => read(&api.get(NAME).await?, namespace),
        Err(error) => Err(error).with_context(|| format!("cannot create Secret {NAME} in {namespace}")),
    }
}

fn read(secret: &Secret, namespace: &str) -> Result<DigestKey> {
    let key = secret.data.as_ref().and_then(|data| data.get(FIELD)).filter(|key| !key.0.is_empty());
    let key = key.with_context(|| {
        format!("Secret {NAME} in {namespace} has no field `{FIELD}`: delete it to have a new one made")
    })?;
    Ok(DigestKey(key.0.clone()))
}
