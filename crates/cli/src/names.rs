//! How people name configs, workloads and releases on the command line.

use std::str::FromStr;

use lockstep_core::config::is_object_name;
use lockstep_core::{ConfigKind, ConfigRef};

/// `app` or `configmap/app`, `secret/db`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigName(pub(crate) ConfigRef);

impl FromStr for ConfigName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once('/').unwrap_or(("configmap", text));
        let kind = match kind.to_ascii_lowercase().as_str() {
            "configmap" | "configmaps" | "cm" => ConfigKind::ConfigMap,
            "secret" | "secrets" => ConfigKind::Secret,
            other => return Err(format!("`{other}` is no kind of config: write configmap/NAME or secret/NAME")),
        };
        if !is_object_name(name) {
            return Err(format!("`{name}` cannot be the name of a config: write NAME, configmap/NAME or secret/NAME"));
        }
        Ok(Self(ConfigRef::new(kind, name)))
    }
}

/// A config's release under way, or a release by its own name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReleaseName {
    Of(ConfigRef),
    Named(String),
}

impl FromStr for ReleaseName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some(("release" | "releases" | "rel", name)) if is_object_name(name) => Ok(Self::Named(name.to_owned())),
            Some(("release" | "releases" | "rel", name)) => Err(format!("`{name}` cannot be the name of a release")),
            _ => text.parse::<ConfigName>().map(|config| Self::Of(config.0)),
        }
    }
}

/// The config as a person types it: short for a ConfigMap.
pub(crate) fn typed(config: &ConfigRef) -> String {
    match config.kind {
        ConfigKind::ConfigMap => config.name.clone(),
        ConfigKind::Secret => config.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<ConfigName>().map(|name| name.0.to_string());
        assert_eq!(read("app").unwrap(), "configmap/app");
        assert_eq!(read("cm/app").unwrap(), "configmap/app");
        assert_eq!(read("secrets/db").unwrap(), "secret/db");
        assert!(read("deployment/web").unwrap_err().contains("configmap/NAME"));
        assert!(read("App").unwrap_err().contains("cannot be the name"));
    }

    #[test]
    fn a_release_has_a_name_of_its_own() {
        assert_eq!("release/configmap-app-3".parse(), Ok(ReleaseName::Named("configmap-app-3".into())));
        assert!(matches!("secret/db".parse(), Ok(ReleaseName::Of(_))));
    }
}
