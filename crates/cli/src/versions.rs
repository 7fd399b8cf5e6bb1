//! `lockstep versions delete`: removes a version that nothing needs.

use anyhow::Result;
use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::DeleteParams;
use lockstep_core::ConfigKind;

use crate::cluster::Cluster;
use crate::content::version;
use crate::names::ConfigName;
use crate::output::{Format, answer};

#[derive(Debug, Args)]
pub(crate) struct Flags {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Delete a version; one that is current or in use cannot be deleted
    Delete {
        /// NAME, configmap/NAME or secret/NAME
        config: ConfigName,
        /// The version's name
        version: String,
    },
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<()> {
    let Action::Delete { config: ConfigName(config), version: name } = &flags.action;
    let object = cluster.versioned_config(config).await?;
    let version = version(&object, name)?;
    let (name, params) = (&version.object, DeleteParams::default());
    let deleted = match config.kind {
        ConfigKind::ConfigMap => cluster.api::<ConfigMap>().delete(name, &params).await.map(drop),
        ConfigKind::Secret => cluster.api::<Secret>().delete(name, &params).await.map(drop),
    };
    deleted.map_err(|error| cluster.explain(error, || format!("delete version {} of {config}", version.version)))?;
    answer(format, config, true, format!("version {} of {config} is deleted", version.version))
}
