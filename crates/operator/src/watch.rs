//! Watches: streams of what changes in the cluster, stripped to facts on arrival.

use std::sync::Arc;

use futures::stream::{BoxStream, select_all};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use kube::api::{ApiResource, PartialObjectMeta};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, watcher};
use kube::{Api, Client, Resource};
use lockstep_api::{PinTable, Release, ReleasePolicy, VersionedConfig};
use lockstep_core::ConfigKind;

use crate::backoff::WatchBackoff;
use crate::environment::Randomness;
use crate::facts::{
    self, ConfigFact, Key, ManagedFact, NamespaceFact, PodFact, PolicyFact, ReleaseFact, ResourceVersion, TableFact,
    WorkloadFact,
};
use crate::index::{Fact, Watched};
use crate::kinds::WorkloadKind;
use crate::unreadable::{Guarded, Unreadable};
use crate::untyped::Untyped;

/// Helm keeps its releases as Secrets, many and large: nobody mounts them.
const NOT_HELM: &str = "type!=helm.sh/release.v1";

/// Where we look: everywhere, or in one namespace.
pub type Scope = Option<String>;

#[derive(Debug)]
pub struct WatchEvent {
    pub watched: Watched,
    pub scope: Scope,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    /// All objects follow, and then `Listed`.
    Listing,
    Listed,
    Seen {
        key: Key,
        fact: Box<Fact>,
        is_listing: bool,
    },
    /// Also for an object that is of no interest any more.
    Gone {
        key: Key,
        at: ResourceVersion,
        is_listing: bool,
    },
    /// An object that is there and cannot be read.
    Unreadable {
        key: Key,
        unreadable: Box<Unreadable>,
        is_listing: bool,
    },
    /// The stream goes on by itself; this is for the log.
    Failed(String),
}

/// All watches, merged into one stream.
pub fn everything(
    client: &Client,
    scopes: &[Scope],
    kinds: &[WorkloadKind],
    random: &Randomness,
) -> impl Stream<Item = WatchEvent> + use<> {
    let mut streams: Vec<BoxStream<'static, WatchEvent>> = Vec::new();
    for scope in scopes {
        let source = Scoped { client: client.clone(), scope: scope.clone(), random: random.clone() };
        streams.push(source.configs::<ConfigMap>(ConfigKind::ConfigMap, Config::default()));
        streams.push(source.configs::<Secret>(ConfigKind::Secret, Config::default().fields(NOT_HELM)));
        streams.push(source.stream(source.api::<VersionedConfig>(), Watched::VersionedConfig, |object| {
            ManagedFact::read_named(object).map(|fact| Some(Fact::Managed(Box::new(fact))))
        }));
        streams.push(source.stream(source.api::<PinTable>(), Watched::PinTable, |object| {
            Ok(Some(Fact::Table(Arc::new(TableFact::read(&object)))))
        }));
        streams.push(source.stream(source.api::<Release>(), Watched::Release, |object| {
            Ok(Some(Fact::Release(Box::new(ReleaseFact::read(object)))))
        }));
        streams.push(source.stream(source.api::<ReleasePolicy>(), Watched::Policy, |object| {
            Ok(Some(Fact::Policy(Box::new(PolicyFact::read(object)))))
        }));
        for (place, kind) in kinds.iter().enumerate() {
            streams.push(source.workloads(place, kind.clone()));
        }
        if scope.is_none() {
            let api: Api<Guarded<PartialObjectMeta<Namespace>>> = Api::all(client.clone());
            streams.push(source.stream(api, Watched::Namespace, |object| {
                Ok(Some(Fact::Namespace(NamespaceFact::read(&object.metadata))))
            }));
        }
    }
    select_all(streams)
}

/// The pods of one namespace, in one request where the API server can begin a watch with all that there is.
pub fn pods(client: &Client, namespace: &str, random: &Randomness) -> BoxStream<'static, WatchEvent> {
    let source = Scoped { client: client.clone(), scope: Some(namespace.to_owned()), random: random.clone() };
    let read = |pod: Pod| Ok(PodFact::read(&pod).map(|fact| Fact::Pod(Box::new(fact))));
    let in_one = source.stream_with(source.api(), (), Config::default().streaming_lists(), Watched::Pod, read);
    let listed_first = source.stream(source.api(), Watched::Pod, read);
    let mut is_listed = false;
    let works = move |event: &WatchEvent| {
        is_listed |= matches!(event.what, What::Listed);
        std::future::ready(is_listed || !matches!(event.what, What::Failed(_)))
    };
    in_one.take_while(works).chain(listed_first).boxed()
}

struct Scoped {
    client: Client,
    scope: Scope,
    random: Randomness,
}

impl Scoped {
    fn api<K>(&self) -> Api<Guarded<K>>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        match &self.scope {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// Metadata only: contents stay in the API server until the moment of their use.
    fn configs<K>(&self, kind: ConfigKind, config: Config) -> BoxStream<'static, WatchEvent>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + Send
            + 'static,
    {
        let api: Api<Guarded<PartialObjectMeta<K>>> = self.api();
        let read = move |object: PartialObjectMeta<K>| Ok(ConfigFact::read(kind, &object.metadata).map(Fact::Config));
        self.stream_with(api, (), config, Watched::Config(kind), read)
    }

    fn workloads(&self, place: usize, kind: WorkloadKind) -> BoxStream<'static, WatchEvent> {
        let api: Api<Guarded<Untyped>> = match &self.scope {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.resource),
            None => Api::all_with(self.client.clone(), &kind.resource),
        };
        let resource = kind.resource.clone();
        let read = move |object: Untyped| Ok(WorkloadFact::read(&kind, &object.0).map(Fact::Workload));
        self.stream_with(api, resource, Config::default(), Watched::Workload(place), read)
    }

    fn stream<K>(
        &self,
        api: Api<Guarded<K>>,
        watched: Watched,
        read: impl Fn(K) -> Reading + Send + 'static,
    ) -> BoxStream<'static, WatchEvent>
    where
        K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        self.stream_with(api, (), Config::default(), watched, read)
    }

    fn stream_with<K>(
        &self,
        api: Api<Guarded<K>>,
        dynamic: K::DynamicType,
        config: Config,
        watched: Watched,
        read: impl Fn(K) -> Reading + Send + 'static,
    ) -> BoxStream<'static, WatchEvent>
    where
        K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
        K::DynamicType: Send,
    {
        let scope = self.scope.clone();
        let events = watcher(api, config).backoff(WatchBackoff::new(self.random.clone()));
        let event = move |event: watcher::Result<watcher::Event<Guarded<K>>>| {
            let understood = |event| understand(event, &dynamic, &read);
            let what = event.map_or_else(|error| What::Failed(error.to_string()), understood);
            WatchEvent { watched, scope: scope.clone(), what }
        };
        events.map(event).boxed()
    }
}

/// What an object says; nothing if it is of no interest; or why it cannot be read.
type Reading = Result<Option<Fact>, String>;

fn understand<K: Resource>(
    event: watcher::Event<Guarded<K>>,
    dynamic: &K::DynamicType,
    read: &impl Fn(K) -> Reading,
) -> What {
    let seen = |object: Guarded<K>, is_listing: bool| {
        let (key, about) = (facts::key(object.meta()), object.object_ref(dynamic));
        let resource_version = facts::resource_version(object.meta());
        match object.object().and_then(read) {
            Ok(Some(fact)) => What::Seen { key, fact: Box::new(fact), is_listing },
            Ok(None) => What::Gone { key, at: resource_version, is_listing },
            Err(fault) => {
                let unreadable = Box::new(Unreadable { resource_version, about, fault });
                What::Unreadable { key, unreadable, is_listing }
            }
        }
    };
    match event {
        watcher::Event::Init => What::Listing,
        watcher::Event::InitApply(object) => seen(object, true),
        watcher::Event::InitDone => What::Listed,
        watcher::Event::Apply(object) => seen(object, false),
        watcher::Event::Delete(object) => {
            let (key, at) = (facts::key(object.meta()), facts::resource_version(object.meta()));
            What::Gone { key, at, is_listing: false }
        }
    }
}

/// Whether the cluster knows a kind.
pub async fn is_served(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    let list = client.list_api_group_resources(&resource.api_version).await;
    match list {
        Ok(list) => Ok(list.resources.iter().any(|found| found.name == resource.plural)),
        // An unknown group is answered with plain text, so the code is all there is.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
