//! Reviews as a real API server (1.36) sent them, without `managedFields`.

use lockstep_core::{ConfigKind, ConfigRef, Table};
use serde_json::Value;

pub const POD_CREATE: &str = include_str!("fixtures/pod-create.json");
pub const DEPLOYMENT_CREATE: &str = include_str!("fixtures/deployment-create.json");
pub const DEPLOYMENT_UPDATE: &str = include_str!("fixtures/deployment-update.json");
pub const REPLICA_SET_CREATE: &str = include_str!("fixtures/replicaset-create.json");
pub const CRON_JOB_CREATE: &str = include_str!("fixtures/cronjob-create.json");
pub const CONFIG_MAP_UPDATE: &str = include_str!("fixtures/configmap-update.json");
pub const SECRET_CREATE: &str = include_str!("fixtures/secret-create.json");

/// The namespace of all of them.
pub const NAMESPACE: &str = "shop";

pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The table of the namespace: configmap/app was adopted as app-1 and is at app-2; secret/db moves from db-1 to db-2.
pub fn table() -> Table {
    let mut table = Table::default();
    let app = table.entry(ConfigRef::new(ConfigKind::ConfigMap, "app"));
    (app.baseline, app.current) = (Some("app-1".into()), Some("app-2".into()));
    let db = table.entry(ConfigRef::new(ConfigKind::Secret, "db"));
    (db.baseline, db.current, db.next) = (Some("db-1".into()), Some("db-1".into()), Some("db-2".into()));
    table
}
