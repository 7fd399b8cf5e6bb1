//! What of an object cannot be changed, what must be right about it, and how many there may be.

use lockstep_api::{PinTable, Release, ReleasePolicy, VersionedConfig};
use serde_json::Value;

use super::{Draft, Fields, Refusal, Store, Writer};
use crate::kinds::{Key, Kind};

pub fn check(store: &Store, by: &Writer, draft: &Draft) -> Result<(), Refusal> {
    match &draft.before {
        None => quota(store, &draft.key)?,
        Some(before) => {
            fixed_fields(by, &draft.key, &before.value, &draft.object)?;
            finalizers(&draft.key, &before.value, &draft.object)?;
        }
    }
    schema(by, &draft.key, &draft.object)
}

fn fixed_fields(by: &Writer, key: &Key, old: &Fields, new: &Fields) -> Result<(), Refusal> {
    let is_changed = |path: &str| old.pointer(path) != new.pointer(path);
    let is_immutable = old["immutable"] == true;
    let fixed: &[&str] = match key.kind {
        Kind::ConfigMap if is_immutable => &["/immutable", "/data", "/binaryData"],
        Kind::Secret if is_immutable => &["/immutable", "/data", "/type"],
        Kind::Secret => &["/type"],
        Kind::Deployment | Kind::ReplicaSet | Kind::DaemonSet => &["/spec/selector"],
        Kind::StatefulSet => &["/spec/selector", "/spec/serviceName", "/spec/podManagementPolicy"],
        Kind::Job => &["/spec/selector", "/spec/template", "/spec/completions"],
        Kind::ControllerRevision => &["/data"],
        // The scheduler may; for others, but images and the like, a pod is what it is.
        Kind::Pod if *by != Writer::Controller => &["/spec"],
        _ => &[],
    };
    match fixed.iter().find(|path| is_changed(path)) {
        None => Ok(()),
        Some(path) if is_immutable => {
            let field = &path[1..];
            Err(Refusal::invalid(key, &format!("{field}: Forbidden: field is immutable when `immutable` is set")))
        }
        Some(path) => {
            let field = path[1..].replace('/', ".");
            Err(Refusal::invalid(key, &format!("{field}: Invalid value: field is immutable")))
        }
    }
}

fn finalizers(key: &Key, old: &Fields, new: &Fields) -> Result<(), Refusal> {
    let of = |value: &Fields| value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let is_deleted = !old["metadata"]["deletionTimestamp"].is_null();
    if is_deleted && of(new).iter().any(|finalizer| !of(old).contains(finalizer)) {
        let why = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted";
        return Err(Refusal::invalid(key, why));
    }
    Ok(())
}

/// What the definitions of our own kinds say. What the operator writes comes from the very types that they are made from.
fn schema(by: &Writer, key: &Key, object: &Fields) -> Result<(), Refusal> {
    if matches!(by, Writer::Operator(_) | Writer::Webhook(_)) {
        return Ok(());
    }
    let read = match key.kind {
        Kind::VersionedConfig => object.read::<VersionedConfig>().map(|config| Some(name_of(&config))),
        Kind::PinTable => object.read::<PinTable>().map(|_| None),
        Kind::Release => object.read::<Release>().map(|_| None),
        Kind::ReleasePolicy => object.read::<ReleasePolicy>().map(|_| None),
        _ => return Ok(()),
    };
    match read {
        Err(error) => Err(Refusal::invalid(key, &error.to_string())),
        Ok(Some(name)) if name != key.name => {
            Err(Refusal::invalid(key, "it must be named after its source: configmap-NAME or secret-NAME"))
        }
        Ok(_) => Ok(()),
    }
}

fn name_of(config: &VersionedConfig) -> String {
    let config: lockstep_core::ConfigRef = (&config.spec.source).into();
    config.versioned_config_name()
}

/// How many objects of a kind a namespace may have.
fn quota(store: &Store, key: &Key) -> Result<(), Refusal> {
    let plural = key.kind.plural();
    for quota in store.list(Kind::ResourceQuota, Some(&key.namespace)) {
        let hard = &quota.value["spec"]["hard"];
        let limits = [&hard[plural], &hard[format!("count/{plural}")]];
        let Some(limit) = limits.into_iter().filter_map(amount).min() else { continue };
        let used = store.list(key.kind, Some(&key.namespace)).count();
        if used >= limit {
            let name = &quota.key.name;
            let why = format!(
                "exceeded quota: {name}, requested: {plural}=1, used: {plural}={used}, limited: {plural}={limit}"
            );
            return Err(Refusal::forbidden(key, &why));
        }
    }
    Ok(())
}

fn amount(value: &Value) -> Option<usize> {
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    usize::try_from(number?).ok()
}
