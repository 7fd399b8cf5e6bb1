//! The pin tables of all namespaces, fed by a watch: every replica has them, also those that do not lead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use futures::StreamExt;
use futures::future::join_all;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client, Resource};
use lockstep_api::PinTable;
use lockstep_core::{Table, names};

use crate::backoff::WatchBackoff;
use crate::environment::Randomness;
use crate::unreadable::Guarded;
use crate::watch::Scope;

pub struct Tables(RwLock<Known>);

#[derive(Default)]
struct Known {
    tables: BTreeMap<String, Arc<Table>>,
    /// Where not everything was listed yet.
    unlisted: BTreeSet<Scope>,
    /// The namespaces whose table cannot be read and was not known before.
    unreadable: BTreeSet<String>,
}

/// The tables are still being listed, or one cannot be read: "no table" cannot be told from "not seen yet".
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the pin tables were not all read yet: the API server may ask again, or another replica")]
pub struct NotListed;

impl Tables {
    pub fn new(scopes: &[Scope]) -> Self {
        Self(RwLock::new(Known { unlisted: scopes.iter().cloned().collect(), ..Known::default() }))
    }

    pub fn of(&self, namespace: &str) -> Result<Option<Arc<Table>>, NotListed> {
        self.read(|known| {
            let is_known = known.is_complete() && !known.unreadable.contains(namespace);
            if is_known { Ok(known.tables.get(namespace).cloned()) } else { Err(NotListed) }
        })
    }

    pub fn is_complete(&self) -> bool {
        self.read(Known::is_complete)
    }

    /// Follows the tables for ever. If the API server is away, what was last seen stays.
    pub async fn follow(&self, client: &Client, scopes: &[Scope], random: &Randomness) {
        join_all(scopes.iter().map(|scope| self.follow_scope(client.clone(), scope, random.clone()))).await;
    }

    async fn follow_scope(&self, client: Client, scope: &Scope, random: Randomness) {
        let api: Api<Guarded<PinTable>> = match scope {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let only_ours = Config::default().fields(&format!("metadata.name={}", names::PIN_TABLE));
        let mut events = watcher(api, only_ours).backoff(WatchBackoff::new(random)).boxed();
        let mut listing = Listing::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.observe(scope, &mut listing, event),
                Err(error) => tracing::warn!(%error, "the watch of the pin tables failed and is started again"),
            }
        }
    }

    fn observe(&self, scope: &Scope, listing: &mut Listing, event: Event<Guarded<PinTable>>) {
        match event {
            Event::Init => listing.clear(),
            Event::InitApply(object) => drop(listing.insert(namespace(&object), table(object))),
            Event::InitDone => self.write(|known| known.replace(scope, std::mem::take(listing))),
            Event::Apply(object) => self.write(|known| known.set(namespace(&object), table(object))),
            Event::Delete(object) => self.write(|known| known.remove(&namespace(&object))),
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
    fn replace(&mut self, scope: &Scope, listed: Listing) {
        let is_elsewhere = |namespace: &String| scope.as_ref().is_some_and(|scope| scope != namespace);
        self.tables.retain(|namespace, _| is_elsewhere(namespace) || listed.contains_key(namespace));
        self.unreadable.retain(is_elsewhere);
        for (namespace, table) in listed {
            self.set(namespace, table);
        }
        self.unlisted.remove(scope);
    }

    /// Of a table that cannot be read, what was last read counts. Without that, nobody can say which version a pod should have.
    fn set(&mut self, namespace: String, table: Option<Arc<Table>>) {
        match table {
            Some(table) => {
                self.unreadable.remove(&namespace);
                self.tables.insert(namespace, table);
            }
            None if self.tables.contains_key(&namespace) => {}
            None => drop(self.unreadable.insert(namespace)),
        }
    }

    fn remove(&mut self, namespace: &str) {
        self.tables.remove(namespace);
        self.unreadable.remove(namespace);
    }
}

/// The tables by their namespaces; nothing where one cannot be read.
type Listing = BTreeMap<String, Option<Arc<Table>>>;

fn namespace(object: &Guarded<PinTable>) -> String {
    object.meta().namespace.clone().unwrap_or_default()
}

fn table(object: Guarded<PinTable>) -> Option<Arc<Table>> {
    object.object().ok().map(|object| Arc::new(Table::from(&object.spec)))
}

#[cfg(test)]
impl Tables {
    /// A cache that has seen these tables and knows that there are no others.
    pub fn listed(tables: impl IntoIterator<Item = (&'static str, Table)>) -> Self {
        let cache = Self::new(&[None]);
        let tables =
            tables.into_iter().map(|(namespace, table)| (namespace.to_owned(), Some(Arc::new(table)))).collect();
        cache.write(|known| known.replace(&None, tables));
        cache
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::PinTableSpec;
    use lockstep_core::{ConfigKind, ConfigRef};

    use super::*;

    fn object(namespace: &str, current: &str) -> Guarded<PinTable> {
        let spec = PinTableSpec { current: [("configmap/app".into(), current.into())].into(), ..Default::default() };
        let mut object = PinTable::new(names::PIN_TABLE, spec);
        object.metadata.namespace = Some(namespace.to_owned());
        Guarded(Ok(object))
    }

    fn unreadable(namespace: &str) -> Guarded<PinTable> {
        let object = serde_json::json!({"metadata": {"namespace": namespace}, "spec": {"current": 1}});
        serde_json::from_str(&object.to_string()).unwrap()
    }

    fn current(tables: &Tables, namespace: &str) -> Option<String> {
        tables.of(namespace).unwrap()?.get(&ConfigRef::new(ConfigKind::ConfigMap, "app"))?.current.clone()
    }

    fn feed(tables: &Tables, scope: &Scope, events: impl IntoIterator<Item = Event<Guarded<PinTable>>>) {
        let mut listing = Listing::new();
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
    fn a_table_that_cannot_be_read_is_as_it_was_or_not_known() {
        let tables = Tables::new(&[None]);
        feed(&tables, &None, [Event::Init, Event::InitApply(object("a", "app-1")), Event::InitDone]);
        feed(&tables, &None, [Event::Apply(unreadable("a")), Event::Apply(unreadable("b"))]);
        assert_eq!(current(&tables, "a").as_deref(), Some("app-1"));
        assert_eq!(tables.of("b"), Err(NotListed));
        assert_eq!(current(&tables, "c"), None, "the others go on");
        feed(&tables, &None, [Event::Init, Event::InitApply(unreadable("a")), Event::InitDone]);
        assert_eq!(current(&tables, "a").as_deref(), Some("app-1"));
        assert_eq!(current(&tables, "b"), None, "it is gone");
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
