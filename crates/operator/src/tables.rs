//! Writing pin tables. There is one per namespace, and many configs may change at once: whoever writes takes along what waits.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lockstep_api::{PinTable, PinTableSpec};
use lockstep_core::{ConfigRef, Entry, names};
use serde_json::{Map, Value, json};

use crate::facts::TableFact;

#[derive(Default)]
pub struct Tables {
    namespaces: Mutex<HashMap<String, Arc<Table>>>,
}

#[derive(Default)]
struct Table {
    /// Entries that nobody has written yet.
    waiting: Mutex<BTreeMap<ConfigRef, Entry>>,
    /// One write at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Tables {
    /// Returns when the entry is written, with the table if it was written by this very call.
    pub async fn publish(
        &self,
        client: &Client,
        namespace: &str,
        exists: bool,
        config: &ConfigRef,
        entry: &Entry,
    ) -> kube::Result<Option<TableFact>> {
        let table = Arc::clone(lock(&self.namespaces).entry(namespace.to_owned()).or_default());
        lock(&table.waiting).insert(config.clone(), entry.clone());
        let _turn = table.turn.lock().await;
        let batch = take(&mut *lock(&table.waiting));
        if batch.is_empty() {
            return Ok(None);
        }
        match write(client, namespace, exists, &batch).await {
            Ok(written) => Ok(Some(TableFact::read(&written))),
            Err(error) => {
                // The others must not think that theirs was written; what was said since then is newer.
                let mut waiting = lock(&table.waiting);
                for (config, entry) in batch {
                    waiting.entry(config).or_insert(entry);
                }
                Err(error)
            }
        }
    }
}

async fn write(
    client: &Client,
    namespace: &str,
    exists: bool,
    batch: &BTreeMap<ConfigRef, Entry>,
) -> kube::Result<PinTable> {
    let api: Api<PinTable> = Api::namespaced(client.clone(), namespace);
    let manager = Some(names::FIELD_MANAGER.to_owned());
    if !exists {
        let empty = PinTable::new(names::PIN_TABLE, PinTableSpec::default());
        match api.create(&PostParams { field_manager: manager.clone(), ..PostParams::default() }, &empty).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => drop(created?),
        }
    }
    let params = PatchParams { field_manager: manager, ..PatchParams::default() };
    api.patch(names::PIN_TABLE, &params, &Patch::Merge(patch(batch))).await
}

/// A merge patch: `null` removes, and other configs' entries are not touched.
fn patch(batch: &BTreeMap<ConfigRef, Entry>) -> Value {
    let column = |of: fn(&Entry) -> &Option<String>| -> Map<String, Value> {
        batch.iter().map(|(config, entry)| (config.to_string(), json!(of(entry)))).collect()
    };
    json!({"spec": {
        "baseline": column(|entry| &entry.baseline),
        "current": column(|entry| &entry.current),
        "next": column(|entry| &entry.next),
        "moving": column(|entry| &entry.moving),
    }})
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use lockstep_core::ConfigKind;

    use super::*;

    #[test]
    fn one_patch_sets_and_removes_the_entries_of_many() {
        let entry = Entry { current: Some("a-2".into()), moving: Some("a-3".into()), ..Entry::default() };
        let config = |name| ConfigRef::new(ConfigKind::ConfigMap, name);
        let batch = BTreeMap::from([(config("a"), entry), (config("gone"), Entry::default())]);
        let expected = json!({"spec": {
            "baseline": {"configmap/a": null, "configmap/gone": null},
            "current": {"configmap/a": "a-2", "configmap/gone": null},
            "next": {"configmap/a": null, "configmap/gone": null},
            "moving": {"configmap/a": "a-3", "configmap/gone": null},
        }});
        assert_eq!(patch(&batch), expected);
    }
}
