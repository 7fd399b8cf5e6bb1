//! The pin tables of all namespaces, fed by a watch: every replica has them, also those that do not lead.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use futures::StreamExt;
use futures::future::join_all;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, DefaultBackoff, Event, watcher};
use kube::{Api, Client};
use lockstep_api::PinTable;
use lockstep_core::{Table, names};

use crate::watch::Scope;

pub struct Tables(RwLock<Known>);

#[derive(Default)]
struct Known {
    tables: HashMap<String, Arc<Table>>,
    /// Where not everything was listed yet.
    unlisted: HashSet<Scope>,
}

/// The tables are still being listed: "no table" cannot be told from "not seen yet".
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the pin tables were not all read yet: the API server may ask again, or another replica")]
pub struct NotListed;

impl Tables {
    pub fn new(scopes: &[Scope]) -> Self {
        Self(RwLock::new(Known { tables: HashMap::new(), unlisted: scopes.iter().cloned().collect() }))
    }

    pub fn of(&self, namespace: &str) -> Result<Option<Arc<Table>>, NotListed> {
        self.read(|known| if known.is_complete() { Ok(known.tables.get(namespace).cloned()) } else { Err(NotListed) })
    }

    pub fn is_complete(&self) -> bool {
        self.read(Known::is_complete)
    }

    /// Follows the tables for ever. If the API server is away, what was last seen stays.
    pub async fn follow(&self, client: &Client, scopes: &[Scope]) {
        join_all(scopes.iter().map(|scope| self.follow_scope(client.clone(), scope))).await;
    }

    async fn follow_scope(&self, client: Client, scope: &Scope) {
        let api: Api<PinTable> = match scope {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let only_ours = Config::default().fields(&format!("metadata.name={}", names::PIN_TABLE));
        let mut events = watcher(api, only_ours).backoff(DefaultBackoff::default()).boxed();
        let mut listing = HashMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.observe(scope, &mut listing, event),
                Err(error) => tracing::warn!(%error, "the watch of the pin tables failed and is started again"),
            }
        }
    }

    fn observe(&self, scope: &Scope, listing: &mut HashMap<String, Arc<Table>>, event: Event<PinTable>) {
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(object) => drop(listing.insert(namespace(&object), table(&object))),
            Event::InitDone => self.write(|known| known.replace(scope, std::mem::take(listing))),
            Event::Apply(object) => self.write(|known| {
                known.tables.insert(namespace(&object), table(&object));
            }),
            Event::Delete(object) => self.write(|known| {
                known.tables.remove(&namespace(&object));
            }),
        }
    }

    /// Nothing that holds the lock can panic half-way through a change, so a poisoned lock is as good as any.
    fn read<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Known {
    fn is_complete(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// What was not listed went while nobody looked.
    fn replace(&mut self, scope: &Scope, listed: HashMap<String, Arc<Table>>) {
        self.tables.retain(|namespace, _| scope.as_ref().is_some_and(|scope| scope != namespace));
        self.tables.extend(listed);
        self.unlisted.remove(scope);
    }
}

fn namespace(object: &PinTable) -> String {
    object.metadata.namespace.clone().unwrap_or_default()
}

fn table(object: &PinTable) -> Arc<Table> {
    Arc::new(Table::from(&object.spec))
}

#[cfg(test)]
impl Tables {
    /// A cache that has seen these tables and knows that there are no others.
    pub fn listed(tables: impl IntoIterator<Item = (&'static str, Table)>) -> Self {
        let cache = Self::new(&[None]);
        let tables = tables.into_iter().map(|(namespace, table)| (namespace.to_owned(), Arc::new(table))).collect();
        cache.write(|known| known.replace(&None, tables));
        cache
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::PinTableSpec;
    use lockstep_core::{ConfigKind, ConfigRef};

    use super::*;

    fn object(namespace: &str, current: &str) -> PinTable {
        let spec = PinTableSpec { current: [("configmap/app".into(), current.into())].into(), ..Default::default() };
        let mut object = PinTable::new(names::PIN_TABLE, spec);
        object.metadata.namespace = Some(namespace.to_owned());
        object
    }

    fn current(tables: &Tables, namespace: &str) -> Option<String> {
        tables.of(namespace).unwrap()?.get(&ConfigRef::new(ConfigKind::ConfigMap, "app"))?.current.clone()
    }

    fn feed(tables: &Tables, scope: &Scope, events: impl IntoIterator<Item = Event<PinTable>>) {
        let mut listing = HashMap::new();
        for event in events {
            tables.observe(scope, &mut listing, event);
        }
    }

    #[test]
    fn nothing_is_said_before_all_is_known() {
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        let tables = Tables::new(&[a.clone(), b.clone()]);
        feed(&tables, &a, [Event::Init, Event::InitApply(object("a", "app-1")), Event::InitDone]);
        assert_eq!(tables.of("a"), Err(NotListed));
        feed(&tables, &b, [Event::Init, Event::InitDone]);
        assert_eq!(current(&tables, "a").as_deref(), Some("app-1"));
        assert_eq!(current(&tables, "b"), None);
    }

    #[test]
    fn changes_are_followed() {
        let tables = Tables::new(&[None]);
        feed(&tables, &None, [Event::Init, Event::InitApply(object("a", "app-1")), Event::InitDone]);
        feed(&tables, &None, [Event::Apply(object("a", "app-2")), Event::Apply(object("b", "app-9"))]);
        assert_eq!(current(&tables, "a").as_deref(), Some("app-2"));
        feed(&tables, &None, [Event::Delete(object("b", "app-9"))]);
        assert_eq!(current(&tables, "b"), None);
    }

    #[test]
    fn a_new_listing_forgets_what_went_meanwhile_and_only_in_its_own_namespace() {
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        let tables = Tables::new(&[a.clone(), b.clone()]);
        for (scope, name) in [(&a, "a"), (&b, "b")] {
            feed(&tables, scope, [Event::Init, Event::InitApply(object(name, "app-1")), Event::InitDone]);
        }
        feed(&tables, &a, [Event::Init]);
        assert_eq!(current(&tables, "a").as_deref(), Some("app-1"), "while it is listed again");
        feed(&tables, &a, [Event::Init, Event::InitDone]);
        assert_eq!(current(&tables, "a"), None);
        assert_eq!(current(&tables, "b").as_deref(), Some("app-1"));
    }
}
