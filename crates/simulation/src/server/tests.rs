//! Through a real `kube::Client`, with virtual time.

mod admitted;
mod faults;
mod verbs;
mod watches;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde_json::{Value, json};

use super::*;
use crate::kinds::{Key, Kind};
use crate::store::{Part, Patch as StorePatch, Propagation};

/// A world with a namespace, and a client that nothing goes wrong with.
struct Stage {
    shared: Shared,
    link: Link,
    client: kube::Client,
}

impl Stage {
    fn new() -> Self {
        let shared = Shared::new(1);
        let link = Link::perfect();
        let client = client(&shared, Writer::User("alice".into()), link.clone());
        let stage = Self { shared, link, client };
        for name in ["shop", "lockstep-system"] {
            stage.write(Write::Create {
                object: json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            });
        }
        stage
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), "shop")
    }

    fn namespaces(&self) -> Api<Namespace> {
        Api::all(self.client.clone())
    }

    /// As Kubernetes' own controllers do.
    fn write(&self, write: Write) -> Arc<Object> {
        self.shared.write(&Writer::Controller, write).unwrap()
    }

    fn operator(&self) -> kube::Client {
        client(&self.shared, Writer::Operator(0), Link::perfect())
    }

    fn get(&self, kind: Kind, name: &str) -> Option<Arc<Object>> {
        self.shared.lock().store.get(&Key::new(kind, "shop", name)).cloned()
    }

    fn revision(&self) -> u64 {
        self.shared.lock().store.revision()
    }

    async fn create_config(&self, name: &str, value: &str) -> ConfigMap {
        self.api().create(&PostParams::default(), &config(name, value)).await.unwrap()
    }
}

fn config(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("k".to_owned(), value.to_owned())])),
        ..ConfigMap::default()
    }
}

/// A pod or workload that takes all of `app` as its environment.
fn pod_spec() -> Value {
    json!({"containers": [{"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": "app"}}]}]})
}

fn pod(name: &str) -> Pod {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec()});
    serde_json::from_value(pod).unwrap()
}

/// The code and reason that the API server refused with.
fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> (u16, String) {
    match answer {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("{other:?}"),
    }
}
