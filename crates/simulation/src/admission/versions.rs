//! Versions and their names: who makes them, what they are called, and when they may go.

use jiff::Timestamp;
use lockstep_core::{VersionName, names};

use super::{RESTORER, annotation, is_content_changed, is_versioned, label, refuse};
use crate::store::{Draft, Fields, Object, Refusal, Store, Writer};

/// What a version says of itself, which never changes.
const SAID: [&str; 7] =
    [names::SOURCE, names::VERSION, names::NUMBER, names::DIGEST, names::KEYS, names::CHANGED_BY, names::REASON];
/// With a dash and ten digits of the digest, Kubernetes' 253 characters.
const LONGEST_NAME: usize = 242;

pub fn check_write(store: &Store, by: &Writer, draft: &Draft, now: Timestamp) -> Result<(), Refusal> {
    let is_version = label(&draft.object, names::VERSION_OF).is_some();
    let was_version = draft.before.as_ref().is_some_and(|before| before.label(names::VERSION_OF).is_some());
    if (is_version || was_version) && !is_operator(by) {
        check_version(by, draft)?;
    }
    if is_version {
        return Ok(());
    }
    check_length(draft)?;
    check_name(store, draft, now)
}

fn is_operator(by: &Writer) -> bool {
    matches!(by, Writer::Operator(_) | Writer::Webhook(_))
}

/// A version is what the operator says that it is.
fn check_version(by: &Writer, draft: &Draft) -> Result<(), Refusal> {
    let refuse = |why| Err(refuse(&draft.key, why));
    let Some(before) = &draft.before else {
        let may_restore = matches!(by, Writer::User(name) if name == RESTORER);
        return if may_restore {
            Ok(())
        } else {
            refuse("only Lockstep makes versions: remove the label lockstep.dev/version-of")
        };
    };
    let (old, new) = (&before.value, &draft.object);
    if label(old, names::VERSION_OF) != label(new, names::VERSION_OF) {
        return refuse("only Lockstep sets the label lockstep.dev/version-of: leave it as it is");
    }
    let said = |object: &Fields, name| annotation(object, name).unwrap_or_default().to_owned();
    if SAID.iter().any(|name| said(old, name) != said(new, name)) {
        return refuse("it is a version: what its annotations of lockstep.dev say of it does not change");
    }
    let owners = |object: &Fields| object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    if *by != Writer::Controller && owners(old) != owners(new) {
        return refuse("it is a version: only Lockstep says who owns it");
    }
    Ok(())
}

/// What cannot become a version is told to whoever writes it.
fn check_length(draft: &Draft) -> Result<(), Refusal> {
    let is_in = label(&draft.object, names::VERSIONED) == Some(names::ON);
    let was_in = draft.before.as_ref().is_some_and(|before| before.label(names::VERSIONED) == Some(names::ON));
    let is_ignored =
        [label(&draft.object, names::IGNORE), annotation(&draft.object, names::IGNORE)].contains(&Some(names::ON));
    if is_in && !was_in && !is_ignored && draft.key.name.len() > LONGEST_NAME {
        return Err(refuse(&draft.key, "its name is too long for its versions to be named after it"));
    }
    Ok(())
}

/// A version name stands for one content for ever.
fn check_name(store: &Store, draft: &Draft, now: Timestamp) -> Result<(), Refusal> {
    let Some(name) = annotation(&draft.object, names::VERSION) else { return Ok(()) };
    if !is_versioned(store, draft, now) {
        return Ok(());
    }
    let old = draft.before.as_ref().map(|before| before.annotation(names::VERSION).unwrap_or_default());
    if old != Some(name) && VersionName::chosen(name).is_err() {
        return Err(refuse(
            &draft.key,
            &format!("`{name}` cannot be a version name: choose another lockstep.dev/version"),
        ));
    }
    if old == Some(name) && is_content_changed(draft) {
        return Err(refuse(
            &draft.key,
            &format!("version {name} has other content already: give this change a new name"),
        ));
    }
    Ok(())
}

/// A version that is current, or that a template is pinned to, is not deleted by accident. Kubernetes' own collectors may.
pub fn check_deletion(store: &Store, by: &Writer, version: &Object, now: Timestamp) -> Result<(), Refusal> {
    let Some(kind) = version.label(names::VERSION_OF) else { return Ok(()) };
    if is_operator(by) || *by == Writer::Controller {
        return Ok(());
    }
    let Some(table) = store.table(&version.key.namespace, now) else { return Ok(()) };
    let config = format!("{kind}/{}", version.annotation(names::SOURCE).unwrap_or_default());
    let entry = config.parse().ok().and_then(|config| table.table()?.get(&config));
    if entry.is_some_and(|entry| entry.names(&version.key.name)) {
        return Err(refuse(&version.key, "it is current or on its way to be: release another version first"));
    }
    let mut users = version
        .owners()
        .filter(|owner| !["VersionedConfig", "ConfigMap", "Secret"].iter().any(|kind| owner["kind"] == *kind));
    if let Some(user) = users.next() {
        return Err(refuse(&version.key, &format!("it is in use by {} {}", user["kind"], user["name"])));
    }
    Ok(())
}
