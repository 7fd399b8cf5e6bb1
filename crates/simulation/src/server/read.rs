//! Reads: one object, a collection page by page, a watch, and what kinds there are.

use axum::body::Body;
use serde_json::{Value, json};

use super::Peer;
use super::answer::{self, Answer, Page};
use super::call::{Call, Path};
use super::link::Verb;
use super::watch::{Scope, Watch};
use crate::kinds::{Key, Kind};
use crate::store::Refusal;

pub fn answer(peer: &Peer, call: &Call) -> Result<Answer, Refusal> {
    match &call.path {
        Path::Object { key, .. } => get(peer, call, key),
        Path::Collection { kind, namespace } if call.verb() == Verb::Watch => {
            watch(peer, call, *kind, namespace.as_deref())
        }
        Path::Collection { kind, namespace } => list(peer, call, *kind, namespace.as_deref()),
        Path::Discovery { group, version } => Ok(discovery(peer, group, version)),
        Path::Unknown => Ok(answer::no_such_path()),
    }
}

fn get(peer: &Peer, call: &Call, key: &Key) -> Result<Answer, Refusal> {
    let world = peer.shared.lock();
    let object = world.store.get(key).ok_or_else(|| Refusal::not_found(key))?;
    Ok(answer::object(object, call.is_metadata))
}

/// Later pages are of the same moment as the first.
fn list(peer: &Peer, call: &Call, kind: Kind, namespace: Option<&str>) -> Result<Answer, Refusal> {
    let selector = call.selector()?;
    let world = peer.shared.lock();
    let (revision, after) = match &call.query.continue_token {
        None => (world.store.revision(), None),
        Some(token) => {
            let (revision, key) =
                read_token(kind, token).ok_or_else(|| Refusal::bad_request("continue key is not valid"))?;
            (revision, Some(key))
        }
    };
    if world.store.is_compacted(revision) {
        let why = "The provided continue parameter is too old to display a consistent list result.";
        return Err(Refusal::new(410, "Expired", why));
    }
    let mut items = world.store.list_at(kind, namespace, revision, after.as_ref());
    items.retain(|object| selector.holds(object));
    let limit = call.query.limit.unwrap_or(usize::MAX);
    let is_more = items.len() > limit;
    items.truncate(limit);
    let last = items.last().filter(|_| is_more);
    let continue_token = last.map(|last| write_token(revision, &last.key)).unwrap_or_default();
    let is_metadata = call.is_metadata;
    Ok(Page { kind, items, revision, continue_token: &continue_token, is_metadata }.answer())
}

fn write_token(revision: u64, key: &Key) -> String {
    format!("{revision}/{}/{}", key.namespace, key.name)
}

fn read_token(kind: Kind, token: &str) -> Option<(u64, Key)> {
    let mut parts = token.splitn(3, '/');
    let revision = parts.next()?.parse().ok()?;
    Some((revision, Key::new(kind, parts.next()?, parts.next()?)))
}

fn watch(peer: &Peer, call: &Call, kind: Kind, namespace: Option<&str>) -> Result<Answer, Refusal> {
    let scope = Scope {
        kind,
        namespace: namespace.map(str::to_owned),
        selector: call.selector()?,
        is_metadata: call.is_metadata,
    };
    let watch = Watch::open(&peer.shared, &peer.link, call.asked(&peer.who), scope, &call.query)?;
    Ok(answer::stream(Body::from_stream(watch)))
}

fn discovery(peer: &Peer, group: &str, version: &str) -> Answer {
    let world = peer.shared.lock();
    let is_of = |kind: &Kind| kind.group() == group && kind.version() == version && !world.missing.contains(kind);
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(is_of).collect();
    let Some(first) = kinds.first() else { return answer::no_such_path() };
    let resource = |name: String, kind: &Kind| {
        json!({
            "name": name,
            "singularName": kind.kind().to_lowercase(),
            "namespaced": kind.is_namespaced(),
            "kind": kind.kind(),
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        })
    };
    let resources: Vec<Value> = kinds
        .iter()
        .flat_map(|kind| {
            let status = kind.has_status().then(|| resource(format!("{}/status", kind.plural()), kind));
            [Some(resource(kind.plural().to_owned(), kind)), status].into_iter().flatten()
        })
        .collect();
    let list = json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": first.api_version(),
        "resources": resources,
    });
    answer::json(list.to_string())
}
