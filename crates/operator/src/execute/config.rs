//! A config's versions, its place in the table, and its report.

use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::Patch;
use lockstep_api::{Held, Move as ApiMove, Source as ApiSource, VersionSummary, VersionedConfig, VersionedConfigSpec};
use lockstep_core::plan::{Action, Choice, Managed, Observed, Refusal, Source, plan};
use lockstep_core::release::{Phase, Progress};
use lockstep_core::{ConfigKind, Entry, Given, Version, names};
use serde_json::json;

use super::status::{REFUSED, Report, with_name};
use super::{
    ANNOUNCEMENT, Checked, ConfigOutcome, Doing, ExecuteError, Executor, UNUSED, WATCH_LAG, Written, keepers,
    patch_params, post_params, written_managed,
};
use crate::content::Content;
use crate::facts::{ConfigFact, Key, ManagedFact, ReleaseFact, ResourceVersion, SourceFact, VersionFact, is_keeper};
use crate::guards::{conflict, delete_as_it_was};
use crate::index::{ConfigId, ConfigView, Fact, Watched};
use crate::tables::Publication;
use crate::verdict::verdict;

/// What came of writing a version and its place in the table.
enum Writing {
    Done,
    /// The config changed since the decision: the watch brings it up again.
    Outdated,
    Refused(Refusal),
}

impl Executor {
    /// Reads what must be read, decides, and does it.
    pub async fn config(&self, mut view: ConfigView) -> Result<ConfigOutcome, ExecuteError> {
        let mut outcome = ConfigOutcome::default();
        let released = view.remembered.as_ref().and_then(ManagedFact::released);
        let is_blank = view.managed.as_ref().is_none_or(|managed| managed.object.status.is_none());
        if view.source.is_some() && is_blank && released.is_some_and(|released| exists(&view, released)) {
            self.remember(&view, &mut outcome).await?;
            return Ok(outcome);
        }
        let mut content = None;
        let digest = match (&view.source, &view.digest) {
            // It is validated anew, too: rules may be others by now.
            (Some(_), known) if known.is_none() || is_retried(&view) || was_refused(view.managed.as_ref()) => {
                content = self.read(&view.id).await?.map(Arc::new);
                content.as_ref().map(|content| content.digest(&self.digest_key))
            }
            (_, known) => known.clone(),
        };
        if is_outdated(content.as_deref(), view.source.as_ref()) {
            outcome.wake = Some(WATCH_LAG);
            return Ok(outcome);
        }
        if let (Some(content), Some(digest)) = (&content, &digest) {
            outcome.digest = content.resource_version.parse().ok().map(|at| (ResourceVersion(at), digest.clone()));
        }
        let obstacle = content.as_deref().and_then(Content::obstacle).or_else(|| obstacle(&view));
        self.check_unaccounted(&mut view, &mut outcome).await?;
        let mut observed = observed(&view, digest);
        if let Some(source) = &mut observed.source {
            source.obstacle = obstacle;
            if let Some(read) = content.as_ref().filter(|_| source.obstacle.is_none()) {
                source.invalid = self.validate(&view, read).await?;
            }
        }
        outcome.wake = wake(&view, &observed);
        let mut actions = plan(&observed);
        // Nobody is moved to what nobody has looked at.
        while let Some(target) = unchecked_target(&view, &actions) {
            self.check(&mut view, &target, &mut outcome).await?;
            observed.versions = versions(&view);
            actions = plan(&observed);
        }
        // Nor to what nobody has validated: it may have been passed over before, for another reason.
        if content.is_none() && releases_source(&observed, &actions) {
            let read = self.read(&view.id).await?;
            let Some(read) = read.filter(|read| !is_outdated(Some(read), view.source.as_ref())) else {
                outcome.wake = Some(WATCH_LAG);
                return Ok(outcome);
            };
            let read = Arc::new(read);
            let invalid = self.validate(&view, &read).await?;
            content = Some(read);
            observed.source.iter_mut().for_each(|source| source.invalid.clone_from(&invalid));
            actions = plan(&observed);
        }
        self.perform(&view, actions, content, &mut outcome).await?;
        Ok(outcome)
    }

    /// What is not in our account was made by somebody else, or by us a moment before we died: only its content tells.
    async fn check_unaccounted(&self, view: &mut ConfigView, outcome: &mut ConfigOutcome) -> Result<(), ExecuteError> {
        let unaccounted = view.versions.iter().filter(|fact| !is_accounted(view.managed.as_ref(), fact));
        let unaccounted: Vec<VersionFact> =
            unaccounted.filter(|fact| view.unchecked.contains(&fact.version.object)).cloned().collect();
        for fact in unaccounted {
            self.check(view, &fact, outcome).await?;
        }
        Ok(())
    }

    /// Reads a version, and passes it over if it does not hold what it says.
    async fn check(
        &self,
        view: &mut ConfigView,
        fact: &VersionFact,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let object = fact.version.object.clone();
        let content = self.read(&version_id(&view.id, &object)).await?;
        let content = content.filter(|content| content.uid() == fact.uid);
        let digest = content.as_ref().and_then(|content| content.fixed_digest(&self.digest_key));
        let is_genuine = digest.as_ref().is_some_and(|digest| digest.full() == fact.version.digest);
        view.unchecked.remove(&object);
        if !is_genuine {
            view.versions.retain(|known| known.version.object != object);
        }
        // One that is gone, or another by now, is the watch's to tell.
        if content.is_some() {
            let digest = digest.map(|digest| digest.full().to_owned());
            outcome.checked.push(Checked { uid: fact.uid.clone(), digest });
            if !is_genuine {
                self.tell_forged(view, fact).await;
            }
        }
        Ok(())
    }

    async fn read(&self, id: &ConfigId) -> Result<Option<Content>, ExecuteError> {
        Content::read(&self.client, id).await.doing(|| format!("read {} in {}", id.config, id.namespace))
    }

    /// Why the content may not be released, if it may not.
    async fn validate(&self, view: &ConfigView, new: &Arc<Content>) -> Result<Option<String>, ExecuteError> {
        let Some(released) = view.managed.as_ref().and_then(ManagedFact::released) else { return Ok(None) };
        let workshop = &self.environment.workshop;
        let judged = verdict(&self.client, workshop, &view.id, view.validation.clone(), new, released).await;
        judged.doing(|| format!("read version {released} of {} in {}", view.id.config, view.id.namespace))
    }

    async fn perform(
        &self,
        view: &ConfigView,
        actions: Vec<Action>,
        content: Option<Arc<Content>>,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let mut managed = view.managed.clone();
        let (mut new_version, mut new_entry) = (None, None);
        let mut report = Report::default();
        for action in actions {
            match action {
                Action::Adopt => managed = Some(self.adopt(&view.id, outcome).await?),
                Action::CreateVersion(version) => new_version = Some(version),
                Action::Keep { object } => self.keep_named(view, managed.as_ref(), &object, outcome).await?,
                Action::Publish(entry) => new_entry = Some(entry),
                Action::Complete { released, last_number } => {
                    (report.released, report.last_number) = (Some(released), Some(last_number));
                }
                Action::Release { to } => outcome.release = Some(to),
                Action::Reject { version, reason } => report.rejected = Some((version, reason)),
                Action::LetGo => report.lets_go = true,
                Action::ForgetChoice => managed = self.forget_choice(managed, outcome).await?,
                Action::Forget => return self.forget(view, outcome).await,
                Action::Refuse(refusal) => report.refusal = Some(refusal.to_string()),
            }
        }
        let new_object = new_version.as_ref().map(|version: &Version| version.object.clone());
        // What had a name before keeps it, also if its version cannot be made again.
        let new_object = new_object.filter(|object| !had_name(view.managed.as_ref(), object));
        match self.write(view, &mut managed, new_version, new_entry, content, outcome).await? {
            Writing::Done => {}
            Writing::Outdated => {
                (outcome.release, outcome.wake) = (None, Some(WATCH_LAG));
                return Ok(());
            }
            Writing::Refused(refusal) => {
                outcome.release = outcome.release.take().filter(|to| exists(view, to));
                outcome.is_refused = true;
                report = Report { refusal: Some(refusal.to_string()), not_made: new_object, ..Report::default() };
            }
        }
        if let (Some((version, reason)), Some(current)) = (report.rejected.take(), &managed) {
            let (held, noted) = self.reject(view, current, &version, reason, outcome).await?;
            (report.held, managed) = (Some(held), Some(noted));
        }
        self.report(view, managed.as_ref(), report, outcome).await
    }

    async fn keep_named(
        &self,
        view: &ConfigView,
        managed: Option<&ManagedFact>,
        object: &str,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let version = view.versions.iter().find(|version| version.version.object == object);
        if let Some((managed, version)) = managed.zip(version) {
            outcome.written.extend(self.keep(view, managed, version).await?);
        }
        Ok(())
    }

    /// Guarded, as all writes of what people write, too: a choice of this moment stays.
    async fn forget_choice(
        &self,
        managed: Option<ManagedFact>,
        outcome: &mut ConfigOutcome,
    ) -> Result<Option<ManagedFact>, ExecuteError> {
        let Some(managed) = managed else { return Ok(None) };
        let name = managed.object.metadata.name.clone().unwrap_or_default();
        let namespace = managed.object.metadata.namespace.clone().unwrap_or_default();
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &namespace);
        let version = managed.resource_version.0.to_string();
        let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "spec": {"current": null}}));
        let written = api.patch(&name, &patch_params(), &patch).await;
        let fact =
            ManagedFact::read(written.doing(|| format!("forget the choice in VersionedConfig {name} in {namespace}"))?);
        outcome.written.push(written_managed(&fact));
        Ok(Some(fact))
    }

    pub(super) async fn adopt(&self, id: &ConfigId, outcome: &mut ConfigOutcome) -> Result<ManagedFact, ExecuteError> {
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &id.namespace);
        let name = id.config.versioned_config_name();
        let source = ApiSource { kind: id.config.kind.into(), name: id.config.name.clone() };
        let object = VersionedConfig::new(&name, VersionedConfigSpec { source, current: None, retry: None });
        let created = match api.create(&post_params(), &object).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => untouched(api.get(&name).await),
            created => created,
        };
        let fact = ManagedFact::read(created.doing(|| format!("create VersionedConfig {name} in {}", id.namespace))?);
        outcome.written.push(written_managed(&fact));
        Ok(fact)
    }

    /// Writes a VersionedConfig again that somebody deleted: what it knew is not theirs to forget, as long as its config is under our care. One that
    /// is there and says nothing may be our own, from a try that was cut off.
    async fn remember(&self, view: &ConfigView, outcome: &mut ConfigOutcome) -> Result<(), ExecuteError> {
        let Some(remembered) = &view.remembered else { return Ok(()) };
        let (id, name) = (&view.id, view.id.config.versioned_config_name());
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &id.namespace);
        let doing = || format!("write VersionedConfig {name} in {} again, which was deleted", id.namespace);
        let object = VersionedConfig::new(&name, remembered.object.spec.clone());
        let found = match api.create(&post_params(), &object).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => api.get(&name).await,
            created => created,
        };
        let found = found.doing(doing)?;
        let created = if found.status.is_some() {
            // Somebody made another one: it counts as it is.
            found
        } else {
            let version = found.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version}, "status": remembered.object.status});
            api.patch_status(&name, &patch_params(), &Patch::Merge(patch)).await.doing(doing)?
        };
        tracing::warn!(namespace = id.namespace, config = %id.config, "somebody deleted its VersionedConfig: it is there again");
        let managed = ManagedFact::read(created);
        outcome.written.push(written_managed(&managed));
        self.keep_again(view, &managed, outcome).await
    }

    /// What a VersionedConfig kept before, it keeps again at once: whoever deletes the config next loses nothing.
    async fn keep_again(
        &self,
        view: &ConfigView,
        managed: &ManagedFact,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        for version in view.versions.iter().filter(|version| version.owners.iter().any(is_keeper)) {
            match self.keep(view, managed, version).await {
                // Kubernetes' garbage collector was there first: retention looks again in a moment.
                Err(error) if error.is_conflict() => {}
                kept => outcome.written.extend(kept?),
            }
        }
        Ok(())
    }

    /// The table names only what there is: a pod that is quicker than its version would wait, or start without what it calls optional.
    async fn write(
        &self,
        view: &ConfigView,
        managed: &mut Option<ManagedFact>,
        version: Option<Version>,
        entry: Option<Entry>,
        content: Option<Arc<Content>>,
        outcome: &mut ConfigOutcome,
    ) -> Result<Writing, ExecuteError> {
        let (Some(version), Some(managed)) = (version, managed) else {
            return self.publish_what_exists(view, entry, None, outcome).await;
        };
        let content = match content {
            Some(content) => Some(content),
            None => self.read(&view.id).await?.map(Arc::new),
        };
        let is_it = |content: &Content| content.digest(&self.digest_key).full() == version.digest;
        let Some(content) =
            content.filter(|content| !is_outdated(Some(content), view.source.as_ref()) && is_it(content))
        else {
            return Ok(Writing::Outdated);
        };
        self.reserve(managed, &version, outcome).await?;
        if let Some(refusal) = self.create_version(&view.id, &version, &content, managed, outcome).await? {
            let rest = without(entry.as_ref().unwrap_or(&view.entry), &view.entry, &version.object);
            self.publish_into(view, Some(&rest).filter(|rest| **rest != view.entry), outcome).await?;
            return Ok(Writing::Refused(refusal));
        }
        let written = self.publish_what_exists(view, entry, Some(&version.object), outcome).await?;
        outcome.created = Some(version);
        Ok(written)
    }

    /// What the table is to name anew must still be there, as far as we knew of it: somebody may have deleted it, or the namespace may have been
    /// made anew, and with it the table, while our watch still speaks of its versions. `made`: the version that we made a moment ago.
    async fn publish_what_exists(
        &self,
        view: &ConfigView,
        entry: Option<Entry>,
        made: Option<&str>,
        outcome: &mut ConfigOutcome,
    ) -> Result<Writing, ExecuteError> {
        let Some(mut entry) = entry else { return Ok(Writing::Done) };
        for object in entry.newly_named(&view.entry).iter().filter(|object| made != Some(object)) {
            let known = view.versions.iter().find(|fact| fact.version.object == *object);
            let found = self.read(&version_id(&view.id, object)).await?;
            let is_it = |found: &Content| known.is_none_or(|known| found.uid() == known.uid);
            if found.as_ref().is_some_and(is_it) {
                continue;
            }
            // Without what pods get at once there is nothing to publish; the rest goes without what nobody can join or keep.
            if entry.hands_out(object) {
                return Ok(Writing::Outdated);
            }
            entry = entry.without(object);
        }
        self.publish_into(view, Some(&entry), outcome).await?;
        Ok(Writing::Done)
    }

    /// Puts down the version's name before there is such a version. A replica that led before and is late with its own version can then not
    /// have the same name for other content: it has put it down itself in time, or this write of ours or that of its is refused.
    pub(super) async fn reserve(
        &self,
        managed: &mut ManagedFact,
        version: &Version,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let status = managed.object.status.clone().unwrap_or_default();
        let names = with_name(&status, version);
        if names != status.names {
            *managed = self.note(managed, json!({"names": names})).await?;
            outcome.written.push(written_managed(managed));
        }
        Ok(())
    }

    /// Why it could not be created, if so. What has its name counts only if it is that version, from an earlier try, or its draft.
    async fn create_version(
        &self,
        id: &ConfigId,
        version: &Version,
        content: &Content,
        managed: &ManagedFact,
        outcome: &mut ConfigOutcome,
    ) -> Result<Option<Refusal>, ExecuteError> {
        let object = &version.object;
        let owners = keepers(&managed.object, &id.config, Some(content.uid()));
        let written = content.write_version(&self.client, id, version, owners, &self.digest_key).await;
        let made = match written.doing(|| format!("create version {object} of {} in {}", id.config, id.namespace)) {
            // Its own draft may have taken the last place of a quota.
            Err(error) if error.is_refusal() && !self.has_draft(id, version).await? => {
                let reason = if id.config.kind == ConfigKind::Secret { error.told_of_secret() } else { error.told() };
                return Ok(Some(Refusal::NotCreated { object: object.clone(), reason }));
            }
            Err(error) if error.is_refusal() => None,
            made => made?,
        };
        let fact = if let Some(ConfigFact::Version(fact)) = made {
            Some(fact)
        } else {
            self.find_version(id, version).await?
        };
        let Some(fact) = fact else { return Ok(Some(Refusal::ObjectInTheWay { object: object.clone() })) };
        outcome.checked.push(Checked { uid: fact.uid.clone(), digest: Some(version.digest.clone()) });
        let key = Key { namespace: id.namespace.clone(), name: object.clone() };
        let fact = Some(Fact::Config(ConfigFact::Version(fact)));
        outcome.written.push(Written { watched: Watched::Config(id.config.kind), key, fact });
        Ok(None)
    }

    async fn has_draft(&self, id: &ConfigId, version: &Version) -> Result<bool, ExecuteError> {
        let found = self.read(&version_id(id, &version.object)).await?;
        Ok(found.is_some_and(|found| found.is_draft(&id.config, &version.digest, &self.digest_key)))
    }

    async fn find_version(&self, id: &ConfigId, version: &Version) -> Result<Option<VersionFact>, ExecuteError> {
        let Some(found) = self.read(&version_id(id, &version.object)).await? else { return Ok(None) };
        if !found.is_draft(&id.config, &version.digest, &self.digest_key) {
            return Ok(found.as_version(&id.config, &version.digest, &self.digest_key));
        }
        let completed = found.complete(&self.client, id, version, &self.digest_key).await;
        match completed.doing(|| format!("name version {} of {} in {}", version.object, id.config, id.namespace))? {
            Some(ConfigFact::Version(fact)) => Ok(Some(fact)),
            _ => Ok(None),
        }
    }

    async fn publish_into(
        &self,
        view: &ConfigView,
        entry: Option<&Entry>,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        if let Some(entry) = entry {
            outcome.written.extend(self.publish(view, entry).await?);
            outcome.published = Some(entry.clone());
        }
        Ok(())
    }

    async fn publish(&self, view: &ConfigView, entry: &Entry) -> Result<Option<Written>, ExecuteError> {
        let id = &view.id;
        let publication = Publication {
            config: id.config.clone(),
            before: view.entry.clone(),
            entry: entry.clone(),
            seen: view.table.clone(),
        };
        let written = self.tables.publish(&id.namespace, publication).await;
        let fact = written.doing(|| format!("publish {} in the pin table of {}", id.config, id.namespace))?;
        let key = Key { namespace: id.namespace.clone(), name: names::PIN_TABLE.to_owned() };
        Ok(fact.map(|fact| Written { watched: Watched::PinTable, key, fact: Some(Fact::Table(fact)) }))
    }

    /// A release that ends before it starts: it says which key is wrong, and why. The version is held before the release is there, so that
    /// nobody can take it for one that should start.
    async fn reject(
        &self,
        view: &ConfigView,
        managed: &ManagedFact,
        object: &str,
        reason: String,
        outcome: &mut ConfigOutcome,
    ) -> Result<(Held, ManagedFact), ExecuteError> {
        let versions: Vec<_> =
            view.versions.iter().map(|fact| fact.version.clone()).chain(outcome.created.clone()).collect();
        let name_of = |object: &str| {
            let found = versions.iter().find(|version| version.object == object);
            found.map_or_else(|| object.to_owned(), |version| version.name.to_string())
        };
        let from = managed.released().unwrap_or_default().to_owned();
        let is_it = |fact: &&ReleaseFact| fact.core.moves.iter().any(|step| step.to == object);
        // Who asks for another try hears of its end by a release of its own.
        let known = view.rejected.iter().find(is_it).filter(|_| !is_retried(view));
        let release = known.map_or_else(|| view.next_release_name.clone(), |fact| fact.core.name.clone());
        let held = Held { object: object.to_owned(), version: name_of(object), release, reason: reason.clone() };
        let noted = self.note(managed, json!({"held": held})).await?;
        outcome.written.push(written_managed(&noted));
        if known.is_none() {
            let step = ApiMove {
                source: ApiSource { kind: view.id.config.kind.into(), name: view.id.config.name.clone() },
                from_version: name_of(&from),
                to_version: name_of(object),
                from,
                to: object.to_owned(),
            };
            let now = self.environment.clock.now();
            let progress = Progress {
                phase: Phase::Rejected,
                reason,
                phase_since: Some(now),
                ended_at: Some(now),
                ..Progress::default()
            };
            outcome.written.push(self.new_release(view, managed, &step, &progress).await?);
        }
        Ok((held, noted))
    }

    /// Only if really nobody uses it: a workload may have come, and have got its version from the table, of which a watch that is late says nothing.
    async fn forget(&self, view: &ConfigView, outcome: &mut ConfigOutcome) -> Result<(), ExecuteError> {
        let id = &view.id;
        if self.has_consumers(id).await? {
            outcome.wake = Some(WATCH_LAG);
            return Ok(());
        }
        if view.table.is_some() {
            outcome.written.extend(self.publish(view, &Entry::default()).await?);
        }
        self.forget_versions(view, outcome).await?;
        let Some(managed) = &view.managed else { return Ok(()) };
        let name = managed.object.metadata.name.clone().unwrap_or_default();
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &id.namespace);
        match api.delete(&name, &delete_as_it_was(managed.uid(), managed.resource_version)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted.doing(|| format!("delete VersionedConfig {name} in {}", id.namespace))?),
        }
        outcome.written.push(Written { fact: None, ..written_managed(managed) });
        Ok(())
    }
}

/// A VersionedConfig that we made and could not note, for want of time. If anything was done with it, it is not ours to begin with.
fn untouched(found: kube::Result<VersionedConfig>) -> kube::Result<VersionedConfig> {
    match found {
        Ok(found) if found.status.is_some() => Err(conflict("there is a VersionedConfig that we did not know of")),
        found => found,
    }
}

/// Whether what was read is not what the watch knows: who changed it, and what they call it, would be another's word.
fn is_outdated(content: Option<&Content>, source: Option<&SourceFact>) -> bool {
    let read = content.and_then(|content| content.resource_version.parse().ok()).map(ResourceVersion);
    read.zip(source).is_some_and(|(read, source)| read != source.resource_version)
}

/// What can be published without a version that is not to be had: where pods would get it at once, all stays as it stands.
fn without(wanted: &Entry, standing: &Entry, object: &str) -> Entry {
    let entry = if wanted.hands_out(object) { standing } else { wanted };
    entry.without(object)
}

fn exists(view: &ConfigView, object: &str) -> bool {
    view.versions.iter().any(|fact| fact.version.object == object)
}

/// Whether content was ever called something.
fn had_name(managed: Option<&ManagedFact>, object: &str) -> bool {
    let status = managed.and_then(|managed| managed.object.status.as_ref());
    status.into_iter().flat_map(|status| &status.names).any(|given| given.object == object)
}

/// Whether the last try ended with a refusal.
fn was_refused(managed: Option<&ManagedFact>) -> bool {
    let status = managed.and_then(|managed| managed.object.status.as_ref());
    status.into_iter().flat_map(|status| &status.conditions).any(|told| told.reason == REFUSED)
}

/// Whether our account knows this version as it says that it is.
fn is_accounted(managed: Option<&ManagedFact>, fact: &VersionFact) -> bool {
    let Version { name, number, object, .. } = &fact.version;
    let says = Given { name: name.to_string(), number: *number, object: object.clone(), was_current: false };
    account(managed).any(|told| Given::from(told) == says && told.uid.as_ref().is_none_or(|uid| *uid == fact.uid))
}

/// Whether it is the very object that we have looked at before: it is immutable. That holds with another digest key, too.
fn is_known_object(managed: Option<&ManagedFact>, fact: &VersionFact) -> bool {
    is_accounted(managed, fact) && account(managed).any(|told| told.uid.as_ref() == Some(&fact.uid))
}

fn account(managed: Option<&ManagedFact>) -> impl Iterator<Item = &VersionSummary> {
    let status = managed.and_then(|managed| managed.object.status.as_ref());
    status.into_iter().flat_map(|status| &status.versions)
}

/// Whether consumers are to be moved to what the source has.
fn releases_source(observed: &Observed, actions: &[Action]) -> bool {
    let Some(source) = &observed.source else { return false };
    let own = observed.versions.iter().find(|version| version.digest == source.digest.full());
    let goes_there =
        |action: &Action| matches!((action, own), (Action::Release { to }, Some(own)) if *to == own.object);
    actions.iter().any(goes_there)
}

/// The version that consumers are to be moved to, if nobody has looked at its content.
fn unchecked_target(view: &ConfigView, actions: &[Action]) -> Option<VersionFact> {
    let target = actions.iter().find_map(|action| match action {
        Action::Release { to } => Some(to),
        _ => None,
    });
    let target = target.filter(|target| view.unchecked.contains(*target))?;
    let found = view.versions.iter().find(|fact| fact.version.object == *target);
    found.filter(|fact| !is_known_object(view.managed.as_ref(), fact)).cloned()
}

/// A version's object, as something to read.
fn version_id(id: &ConfigId, object: &str) -> ConfigId {
    let config = lockstep_core::ConfigRef::new(id.config.kind, object);
    ConfigId { namespace: id.namespace.clone(), config }
}

fn versions(view: &ConfigView) -> Vec<Version> {
    view.versions.iter().map(|fact| fact.version.clone()).collect()
}

/// Whether somebody asked to try again what failed: rules may be others by now.
fn is_retried(view: &ConfigView) -> bool {
    let Some(managed) = &view.managed else { return false };
    let held = managed.object.status.as_ref().and_then(|status| status.held.as_ref());
    held.is_some_and(|held| managed.object.spec.retry.as_ref() == Some(&held.release))
}

fn obstacle(view: &ConfigView) -> Option<String> {
    let policy = view.missing_policy.as_ref()?;
    Some(format!(
        "there is no ReleasePolicy {policy} in its namespace, which its annotation {} names: create it, or remove the annotation",
        names::POLICY
    ))
}

fn observed(view: &ConfigView, digest: Option<lockstep_core::Digest>) -> Observed {
    let source = view.source.as_ref().zip(digest).map(|(source, digest)| Source {
        digest,
        version_name: source.version_name.clone(),
        changed_by: source.changed_by.clone(),
        reason: source.reason.clone(),
        obstacle: None,
        invalid: None,
    });
    Observed {
        config: view.id.config.clone(),
        source,
        versions: versions(view),
        unkept: view.unkept.clone(),
        entry: view.entry.clone(),
        managed: view.managed.as_ref().map(|fact| managed(fact, view.held_is_outdated)),
        has_consumers: !view.consumers.is_empty(),
        pinned: view.consumers.iter().filter_map(|(_, pin)| Some(pin.as_ref()?.to_string())).collect(),
        has_opted_out: view.source.is_none() && view.has_source_object,
        is_long_unused: view.unused.is_some_and(|since| since.elapsed() >= UNUSED),
        moving_to: view.moving_to.clone(),
        under_way: view.under_way.clone(),
        stranded: view.stranded,
        left_behind: view.left_behind.clone(),
        can_join: view.can_join,
        next_is_fresh: view.announced.is_some_and(|at| at.elapsed() < ANNOUNCEMENT),
        has_unpinned_templates: view.has_unpinned_templates,
        rejected: view.rejected_versions.clone(),
    }
}

/// What was announced or withdrawn, and does not come, is put right; what nobody uses any more is forgotten.
fn wake(view: &ConfigView, observed: &Observed) -> Option<Duration> {
    let announced = observed.next_is_fresh.then_some(ANNOUNCEMENT);
    let unused = view.unused.filter(|_| !observed.is_long_unused).map(|since| UNUSED.saturating_sub(since.elapsed()));
    announced.into_iter().chain(unused).min()
}

fn managed(fact: &ManagedFact, held_is_outdated: bool) -> Managed {
    let status = fact.object.status.as_ref();
    let held = status.and_then(|status| status.held.as_ref());
    let spec = &fact.object.spec;
    Managed {
        released: fact.released().map(str::to_owned),
        last_number: status.map_or(0, |status| u64::try_from(status.last_number).unwrap_or(0)),
        names: status.iter().flat_map(|status| &status.names).map(Given::from).collect(),
        held: held.map(|held| lockstep_core::plan::Held {
            object: held.object.clone(),
            release: held.release.clone(),
            is_outdated: held_is_outdated,
        }),
        retry: spec.retry.clone(),
        choice: spec
            .current
            .as_ref()
            .map(|choice| Choice { version: choice.version.clone(), instead_of: choice.instead_of.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_api::VersionedConfigStatus;

    const OBJECT: &str = "app-aaaaaaaaaa";

    fn managed_with(status: serde_json::Value) -> ManagedFact {
        let source = ApiSource { kind: ConfigKind::ConfigMap.into(), name: "app".into() };
        let mut object =
            VersionedConfig::new("configmap-app", VersionedConfigSpec { source, current: None, retry: None });
        object.status = Some(serde_json::from_value::<VersionedConfigStatus>(status).unwrap());
        ManagedFact::read(object)
    }

    #[test]
    fn what_is_not_to_be_had_keeps_nothing_else_from_being_published() {
        let named = |name: &str| Some(name.to_owned());
        let standing = Entry { baseline: named("a"), current: named("a"), ..Entry::default() };
        let goes_back = Entry { current: named("b"), next: named(OBJECT), ..standing.clone() };
        assert_eq!(without(&goes_back, &standing, OBJECT), Entry { next: None, ..goes_back });
        let adopted = Entry { baseline: named(OBJECT), current: named(OBJECT), ..Entry::default() };
        assert_eq!(without(&adopted, &Entry::default(), OBJECT), Entry::default());
    }

    #[test]
    fn our_account_knows_a_version_only_as_it_was_made() {
        let version = |number: u64, uid: &str| {
            let meta = json!({"name": OBJECT, "uid": uid, "labels": {names::VERSION_OF: "configmap"}, "annotations": {
                names::SOURCE: "app", names::VERSION: "r2", names::NUMBER: number.to_string(), names::DIGEST: "a".repeat(64),
            }});
            match ConfigFact::read(ConfigKind::ConfigMap, &serde_json::from_value(meta).unwrap()) {
                Some(ConfigFact::Version(fact)) => fact,
                _ => unreachable!(),
            }
        };
        let managed =
            managed_with(json!({"versions": [{"version": "r2", "number": 2, "object": OBJECT, "uid": "one"}]}));
        assert!(
            is_accounted(Some(&managed), &version(2, "one")) && is_known_object(Some(&managed), &version(2, "one"))
        );
        assert!(!is_accounted(Some(&managed), &version(2, "two")), "another object of this name");
        assert!(!is_accounted(Some(&managed), &version(90, "one")));
        assert!(!is_accounted(None, &version(2, "one")));
        let managed = managed_with(json!({"versions": [{"version": "r2", "number": 2, "object": OBJECT}]}));
        assert!(is_accounted(Some(&managed), &version(2, "one")));
        assert!(!is_known_object(Some(&managed), &version(2, "one")), "an account of before");
    }

    #[test]
    fn content_counts_only_together_with_what_the_watch_knows_of_it() {
        let object = json!({"metadata": {"name": "app", "resourceVersion": "7"}});
        let content = Content::parse(ConfigKind::ConfigMap, &object).unwrap();
        let source = |version: &str| {
            let meta = serde_json::from_value(json!({"name": "app", "resourceVersion": version})).unwrap();
            match ConfigFact::read(ConfigKind::ConfigMap, &meta) {
                Some(ConfigFact::Source(source)) => source,
                _ => unreachable!(),
            }
        };
        assert!(!is_outdated(Some(&content), Some(&source("7"))));
        assert!(is_outdated(Some(&content), Some(&source("6"))), "somebody changed it since");
        assert!(!is_outdated(None, Some(&source("6"))), "nothing was read");
    }
}
