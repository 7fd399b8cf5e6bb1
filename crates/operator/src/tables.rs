//! Writing pin tables. There is one per namespace, and many configs may change at once: whoever writes takes along what waits.
//!
//! Several write the same table: the operator, its webhook in each replica, and for a moment perhaps a replica that led before and does not
//! know it. So each publication says what its config's entry was, and is refused if it is another by now; and each write of the table
//! names the table's resource version. If others wrote since, the table is read again, and what still holds is written.
//!
//! An entry may be as it was and yet have been another in between, by the hand of another leader. Where anybody but us has written the table
//! since a decision was made, the lease says whether we still lead, after the table was read: if we do, nobody else has led.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lockstep_api::{PinTable, PinTableSpec};
use lockstep_core::{ConfigRef, Entry, names};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use crate::facts::{ResourceVersion, TableFact};
use crate::guards::conflict;
use crate::leader::Term;

/// How often a batch is written anew because others wrote the table meanwhile.
const ATTEMPTS: usize = 10;
/// Of how many namespaces we remember what we wrote last.
const REMEMBERED: usize = 1000;

/// What a config's entry is to become, and what the decision was based on.
#[derive(Debug, Clone)]
pub struct Publication {
    pub config: ConfigRef,
    pub before: Entry,
    pub entry: Entry,
    /// The table of that time.
    pub seen: Option<Arc<TableFact>>,
}

impl Publication {
    /// Whether what stands there is what it was, or what it should become already: the webhook enters what we are about to, too.
    fn holds(&self, standing: &Entry) -> bool {
        let Entry { baseline, current, next, moving } = standing;
        let is_so = |field: &Option<String>, of: fn(&Entry) -> &Option<String>| {
            field == of(&self.before) || field == of(&self.entry)
        };
        is_so(baseline, |entry| &entry.baseline)
            && is_so(current, |entry| &entry.current)
            && is_so(next, |entry| &entry.next)
            && is_so(moving, |entry| &entry.moving)
    }

    fn seen(&self) -> ResourceVersion {
        self.seen.as_ref().map(|seen| seen.resource_version).unwrap_or_default()
    }
}

pub struct Tables {
    client: Client,
    /// None if no leader's decisions are written, but only what users change.
    term: Option<Term>,
    namespaces: Mutex<BTreeMap<String, Arc<Table>>>,
}

#[derive(Default)]
struct Table {
    /// What nobody has written yet.
    waiting: Mutex<Vec<Waiting>>,
    /// One write at a time.
    turn: tokio::sync::Mutex<Lineage>,
}

struct Waiting {
    publication: Publication,
    answer: oneshot::Sender<Answer>,
}

/// The table, for who is to take it in.
type Answer = kube::Result<Option<Arc<TableFact>>>;

/// A table as we know it.
#[derive(Default)]
struct Lineage {
    newest: Option<Arc<TableFact>>,
    /// Everything that was written since this version was written by us.
    since: ResourceVersion,
}

impl Tables {
    pub fn new(client: Client, term: Option<Term>) -> Self {
        Self { client, term, namespaces: Mutex::default() }
    }

    /// Returns when the entry is written, or cannot be. Nothing of it is left behind then. With the table, for one of those who were
    /// written together.
    pub async fn publish(&self, namespace: &str, publication: Publication) -> Answer {
        let table = self.table(namespace);
        let (answer, mut answered) = oneshot::channel();
        lock(&table.waiting).push(Waiting { publication, answer });
        let mut lineage = table.turn.lock().await;
        if let Ok(answer) = answered.try_recv() {
            return answer;
        }
        let batch = take(&mut *lock(&table.waiting));
        // Who does not wait any more does not want it any more.
        let batch = batch.into_iter().filter(|waiting| !waiting.answer.is_closed()).collect();
        self.write(namespace, &mut lineage, batch).await;
        // Who was to write it may have been stopped on its way.
        answered.try_recv().unwrap_or_else(|_| Err(conflict("its write was given up")))
    }

    fn table(&self, namespace: &str) -> Arc<Table> {
        let mut namespaces = lock(&self.namespaces);
        if namespaces.len() >= REMEMBERED {
            namespaces.retain(|_, table| Arc::strong_count(table) > 1);
        }
        Arc::clone(namespaces.entry(namespace.to_owned()).or_default())
    }

    fn api(&self, namespace: &str) -> Api<PinTable> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Writes what can be written of a batch, and tells everybody what came of theirs.
    async fn write(&self, namespace: &str, lineage: &mut Lineage, mut batch: Vec<Waiting>) {
        for waiting in &batch {
            lineage.learn(waiting.publication.seen.as_ref());
        }
        // The table that we remember may be gone, with its namespace or by somebody's hand: nobody is refused before we have looked.
        if !lineage.admits(&batch) {
            match self.api(namespace).get_opt(names::PIN_TABLE).await {
                Ok(found) => lineage.read(found.as_ref()),
                Err(error) => return tell_failed(batch, &error),
            }
        }
        for _ in 0..ATTEMPTS {
            batch = lineage.still_wanted(batch);
            if batch.is_empty() {
                return;
            }
            let outcome = match self.may_write(lineage, &batch).await {
                Ok(()) => self.write_once(namespace, lineage, &batch).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(Some(written)) => return tell_written(batch, written),
                Ok(None) => {}
                Err(error) => return tell_failed(batch, &error),
            }
        }
        tell_failed(batch, &conflict("the pin table is written by others all the time"));
    }

    /// Where anybody but us has written since a decision, or there is no table that tells, the lease does.
    async fn may_write(&self, lineage: &Lineage, batch: &[Waiting]) -> kube::Result<()> {
        let Some(term) = &self.term else { return Ok(()) };
        let is_ours =
            lineage.newest.is_some() && batch.iter().all(|waiting| waiting.publication.seen() >= lineage.since);
        if is_ours || term.is_confirmed().await? {
            return Ok(());
        }
        Err(conflict("another replica leads"))
    }

    /// None if others wrote first: then their table is known afterwards.
    async fn write_once(
        &self,
        namespace: &str,
        lineage: &mut Lineage,
        batch: &[Waiting],
    ) -> kube::Result<Option<Arc<TableFact>>> {
        let api = self.api(namespace);
        let manager = Some(names::FIELD_MANAGER.to_owned());
        let written = if let Some(known) = &lineage.newest {
            let params = PatchParams { field_manager: manager, ..PatchParams::default() };
            api.patch(names::PIN_TABLE, &params, &Patch::Merge(patch(known.resource_version, batch))).await
        } else {
            let table = PinTable::new(names::PIN_TABLE, spec(batch));
            api.create(&PostParams { field_manager: manager, ..PostParams::default() }, &table).await
        };
        match written {
            Ok(written) => Ok(Some(lineage.wrote(&written))),
            // One that is to be made cannot be missing: then it is its namespace that is.
            Err(kube::Error::Api(status)) if is_outdated(&status, lineage) => {
                lineage.read(api.get_opt(names::PIN_TABLE).await?.as_ref());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn is_outdated(status: &kube::core::Status, lineage: &Lineage) -> bool {
    status.is_conflict() || status.is_already_exists() || (status.is_not_found() && lineage.newest.is_some())
}

impl Lineage {
    fn version(&self) -> ResourceVersion {
        self.newest.as_ref().map(|known| known.resource_version).unwrap_or_default()
    }

    /// What a watch says of our own writes is no news.
    fn learn(&mut self, seen: Option<&Arc<TableFact>>) {
        if let Some(seen) = seen.filter(|seen| seen.resource_version > self.version()) {
            (self.since, self.newest) = (seen.resource_version, Some(Arc::clone(seen)));
        }
    }

    fn read(&mut self, found: Option<&PinTable>) {
        self.newest = found.map(|found| Arc::new(TableFact::read(found)));
        self.since = self.version();
    }

    fn entry(&self, config: &ConfigRef) -> Entry {
        self.newest.as_ref().map(|newest| newest.entry(config)).unwrap_or_default()
    }

    /// Whether all of a batch was decided on what we know. Whoever saw no table where we know one may be right.
    fn admits(&self, batch: &[Waiting]) -> bool {
        let is_based_on_it = |waiting: &Waiting| {
            let publication = &waiting.publication;
            publication.seen.is_some() && publication.holds(&self.entry(&publication.config))
        };
        self.newest.is_none() || batch.iter().all(is_based_on_it)
    }

    /// It was based on what we know: so whatever was ours since then is so still.
    fn wrote(&mut self, written: &PinTable) -> Arc<TableFact> {
        let written = Arc::new(TableFact::read(written));
        if self.newest.is_none() {
            self.since = ResourceVersion::default();
        }
        self.newest = Some(Arc::clone(&written));
        written
    }

    /// What is still to be written. Whose entry is another by now, or has become what it should be, hears of it.
    fn still_wanted(&self, batch: Vec<Waiting>) -> Vec<Waiting> {
        let mut wanted: Vec<Waiting> = Vec::new();
        for waiting in batch {
            let Publication { config, entry, .. } = &waiting.publication;
            let standing = self.entry(config);
            let together = wanted.iter().rfind(|other| other.publication.config == *config);
            let will_stand = together.map_or(&standing, |other| &other.publication.entry);
            if !waiting.publication.holds(will_stand) {
                waiting.tell(Err(conflict("its entry in the pin table is another by now")));
            } else if together.is_none() && standing == *entry {
                waiting.tell(Ok(self.newest.clone()));
            } else {
                wanted.push(waiting);
            }
        }
        wanted
    }
}

impl Waiting {
    /// Who does not wait any more need not hear it.
    fn tell(self, answer: Answer) {
        drop(self.answer.send(answer));
    }
}

fn tell_written(batch: Vec<Waiting>, written: Arc<TableFact>) {
    let mut written = Some(written);
    for waiting in batch {
        waiting.tell(Ok(written.take()));
    }
}

fn tell_failed(batch: Vec<Waiting>, error: &kube::Error) {
    for waiting in batch {
        waiting.tell(Err(match error {
            kube::Error::Api(status) => kube::Error::Api(status.clone()),
            error => kube::Error::Service(error.to_string().into()),
        }));
    }
}

/// A merge patch: `null` removes, and other configs' entries are not touched.
fn patch(at: ResourceVersion, batch: &[Waiting]) -> Value {
    let column = |of: fn(&Entry) -> &Option<String>| -> Map<String, Value> {
        let entries = batch.iter().map(|waiting| &waiting.publication);
        entries.map(|publication| (publication.config.to_string(), json!(of(&publication.entry)))).collect()
    };
    json!({"metadata": {"resourceVersion": at.0.to_string()}, "spec": {
        "baseline": column(|entry| &entry.baseline),
        "current": column(|entry| &entry.current),
        "next": column(|entry| &entry.next),
        "moving": column(|entry| &entry.moving),
    }})
}

/// A new table.
fn spec(batch: &[Waiting]) -> PinTableSpec {
    let column = |of: fn(&Entry) -> &Option<String>| {
        let entries = batch.iter().map(|waiting| &waiting.publication);
        entries
            .filter_map(|publication| Some((publication.config.to_string(), of(&publication.entry).clone()?)))
            .collect()
    };
    PinTableSpec {
        baseline: column(|entry| &entry.baseline),
        current: column(|entry| &entry.current),
        next: column(|entry| &entry.next),
        moving: column(|entry| &entry.moving),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
