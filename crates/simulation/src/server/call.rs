//! A request, read.

use axum::body::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Method, Uri, request};
use serde_json::{Value, json};

use super::link::{Asked, Verb};
use super::selector::Selector;
use crate::kinds::{Key, Kind};
use crate::store::{Part, Patch, Propagation, Refusal, Write, Writer};

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Call {
    pub method: Method,
    pub path: Path,
    pub query: Query,
    /// Whether only metadata is wanted.
    pub is_metadata: bool,
    content_type: String,
    body: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    /// Of a whole group: `/apis/apps/v1`.
    Discovery {
        group: String,
        version: String,
    },
    /// Objects of a kind, in all namespaces or in one.
    Collection {
        kind: Kind,
        namespace: Option<String>,
    },
    Object {
        key: Key,
        part: Part,
    },
    Unknown,
}

#[expect(clippy::struct_excessive_bools, reason = "what a query says, each by its own name")]
#[derive(Debug, Clone, Default)]
pub struct Query {
    pub watch: bool,
    pub limit: Option<usize>,
    pub continue_token: Option<String>,
    pub resource_version: Option<String>,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: bool,
    pub dry_run: bool,
    pub force: bool,
    pub field_manager: String,
    labels: String,
    fields: String,
}

impl Call {
    pub fn new(parts: &request::Parts, body: Bytes) -> Self {
        let text = |name| header(&parts.headers, name);
        Self {
            method: parts.method.clone(),
            path: Path::parse(parts.uri.path()),
            query: Query::parse(&parts.uri),
            is_metadata: text(ACCEPT).contains("as=PartialObjectMetadata"),
            content_type: text(CONTENT_TYPE).to_owned(),
            body,
        }
    }

    pub fn verb(&self) -> Verb {
        match (&self.path, &self.method) {
            (Path::Collection { .. }, &Method::GET) if self.query.watch => Verb::Watch,
            (Path::Collection { .. }, &Method::GET) => Verb::List,
            (Path::Collection { .. }, &Method::POST) => Verb::Create,
            (Path::Object { .. }, &Method::PUT) => Verb::Replace,
            (Path::Object { .. }, &Method::PATCH) => Verb::Patch,
            (Path::Object { .. }, &Method::DELETE) => Verb::Delete,
            (Path::Object { .. }, _) => Verb::Get,
            _ => Verb::Discover,
        }
    }

    /// As faults see it.
    pub fn asked(&self, who: &Writer) -> Asked {
        let (kind, namespace, name, is_status) = match &self.path {
            Path::Collection { kind, namespace } => (Some(*kind), namespace.clone().unwrap_or_default(), "", false),
            Path::Object { key, part } => {
                (Some(key.kind), key.namespace.clone(), key.name.as_str(), *part == Part::Status)
            }
            Path::Discovery { .. } | Path::Unknown => (None, String::new(), "", false),
        };
        Asked { who: who.clone(), verb: self.verb(), kind, namespace, name: name.to_owned(), is_status }
    }

    pub fn selector(&self) -> Result<Selector, Refusal> {
        Selector::parse(&self.query.labels, &self.query.fields)
    }

    /// What it wants to be written.
    pub fn write(&self) -> Result<Write, Refusal> {
        match (&self.path, &self.method) {
            (Path::Collection { kind, namespace }, &Method::POST) => self.create(*kind, namespace.as_deref()),
            (Path::Object { key, part }, &Method::PUT) => {
                Ok(Write::Replace { key: key.clone(), object: self.json()?, part: *part })
            }
            (Path::Object { key, part }, &Method::PATCH) => {
                Ok(Write::Patch { key: key.clone(), patch: self.patch()?, part: *part })
            }
            (Path::Object { key, .. }, &Method::DELETE) => self.delete(key),
            _ => Err(Refusal::new(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )),
        }
    }

    fn json(&self) -> Result<Value, Refusal> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Refusal::bad_request(format!("the body is not JSON: {error}")))
    }

    fn create(&self, kind: Kind, namespace: Option<&str>) -> Result<Write, Refusal> {
        let mut object = self.json()?;
        if !object.is_object() {
            return Err(Refusal::bad_request("the body is no object"));
        }
        let namespace = namespace.unwrap_or_default();
        let named = object["metadata"]["namespace"].as_str().filter(|named| !named.is_empty() && *named != namespace);
        if named.is_some() {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.kind());
        if kind.is_namespaced() {
            object["metadata"]["namespace"] = json!(namespace);
        }
        Ok(Write::Create { object })
    }

    fn patch(&self) -> Result<Patch, Refusal> {
        match self.content_type.as_str() {
            "application/merge-patch+json" => Ok(Patch::Merge(self.json()?)),
            "application/json-patch+json" => serde_json::from_value(self.json()?)
                .map(Patch::Json)
                .map_err(|error| Refusal::bad_request(format!("the body is no patch: {error}"))),
            "application/apply-patch+yaml" => Ok(Patch::Apply {
                manager: self.query.field_manager.clone(),
                force: self.query.force,
                object: self.json()?,
            }),
            other => Err(Refusal::new(
                415,
                "UnsupportedMediaType",
                format!("the body of the request was in an unknown format: {other}"),
            )),
        }
    }

    fn delete(&self, key: &Key) -> Result<Write, Refusal> {
        let options = if self.body.is_empty() { Value::Null } else { self.json()? };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let propagation = match options["propagationPolicy"].as_str() {
            Some("Foreground") => Propagation::Foreground,
            Some("Orphan") => Propagation::Orphan,
            // So it was when there was no collector, and so it stayed.
            None if matches!(key.kind, Kind::Job | Kind::ReplicationController) => Propagation::Orphan,
            _ => Propagation::Background,
        };
        let preconditions = &options["preconditions"];
        Ok(Write::Delete {
            key: key.clone(),
            uid: text(&preconditions["uid"]),
            revision: text(&preconditions["resourceVersion"]).and_then(|version| version.parse().ok()),
            propagation,
        })
    }

    pub fn is_dry_run(&self) -> bool {
        self.query.dry_run
    }
}

impl Path {
    fn parse(path: &str) -> Self {
        let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
        let (group, rest) = match steps.as_slice() {
            ["api", rest @ ..] => ("", rest),
            ["apis", group, rest @ ..] => (*group, rest),
            _ => return Self::Unknown,
        };
        let [version, rest @ ..] = rest else { return Self::Unknown };
        let kind = |plural: &str| Kind::from_path(group, version, plural);
        let object = |plural: &str, namespace: &str, name: &str, sub: Option<&str>| {
            let part = match sub {
                None | Some("finalize") => Part::Object,
                Some("status") => Part::Status,
                Some(_) => return Self::Unknown,
            };
            kind(plural).map_or(Self::Unknown, |kind| Self::Object { key: Key::new(kind, namespace, name), part })
        };
        let collection = |plural: &str, namespace: Option<&str>| {
            let namespace = namespace.map(str::to_owned);
            kind(plural).map_or(Self::Unknown, |kind| Self::Collection { kind, namespace })
        };
        match rest {
            [] => Self::Discovery { group: group.to_owned(), version: (*version).to_owned() },
            ["namespaces", name] => object("namespaces", "", name, None),
            ["namespaces", name, sub @ ("status" | "finalize")] => object("namespaces", "", name, Some(sub)),
            ["namespaces", namespace, plural] => collection(plural, Some(namespace)),
            ["namespaces", namespace, plural, name] => object(plural, namespace, name, None),
            ["namespaces", namespace, plural, name, sub] => object(plural, namespace, name, Some(sub)),
            [plural] => collection(plural, None),
            _ => Self::Unknown,
        }
    }
}

impl Query {
    fn parse(uri: &Uri) -> Self {
        let mut query = Self::default();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            query.set(name, decoded(value));
        }
        query
    }

    fn set(&mut self, name: &str, value: String) {
        let is_true = value == "true" || value == "1";
        match name {
            "watch" => self.watch = is_true,
            "limit" => self.limit = value.parse().ok().filter(|limit| *limit > 0),
            "continue" => self.continue_token = Some(value).filter(|token| !token.is_empty()),
            "resourceVersion" => self.resource_version = Some(value).filter(|version| !version.is_empty()),
            "timeoutSeconds" => self.timeout_seconds = value.parse().ok(),
            "allowWatchBookmarks" => self.bookmarks = is_true,
            "sendInitialEvents" => self.send_initial_events = is_true,
            "dryRun" => self.dry_run = value == "All",
            "force" => self.force = is_true,
            "fieldManager" => self.field_manager = value,
            "labelSelector" => self.labels = value,
            "fieldSelector" => self.fields = value,
            _ => {}
        }
    }
}

fn header(headers: &HeaderMap, name: http::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// As forms are encoded: `+` is a blank, and `%2C` a comma.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = (*first == b'%').then(|| after.get(..2)).flatten().and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        bytes.push(escaped.unwrap_or(if *first == b'+' { b' ' } else { *first }));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read() {
        let object = |kind, namespace, name, part| Path::Object { key: Key::new(kind, namespace, name), part };
        for (path, read) in [
            ("/api/v1/namespaces/a", object(Kind::Namespace, "", "a", Part::Object)),
            ("/api/v1/namespaces/a/status", object(Kind::Namespace, "", "a", Part::Status)),
            ("/api/v1/namespaces/a/pods/b", object(Kind::Pod, "a", "b", Part::Object)),
            ("/apis/apps/v1/namespaces/a/deployments/b/status", object(Kind::Deployment, "a", "b", Part::Status)),
            ("/api/v1/configmaps", Path::Collection { kind: Kind::ConfigMap, namespace: None }),
            ("/api/v1/namespaces", Path::Collection { kind: Kind::Namespace, namespace: None }),
            ("/apis/apps/v1", Path::Discovery { group: "apps".into(), version: "v1".into() }),
            ("/api/v1/namespaces/a/pods/b/log", Path::Unknown),
            ("/apis/apps/v1/nothings", Path::Unknown),
        ] {
            assert_eq!(Path::parse(path), read, "{path}");
        }
    }

    #[test]
    fn queries_are_decoded() {
        let uri: Uri =
            "/x?limit=5&labelSelector=a%3Db%2Cc&fieldSelector=type%21%3Dx+y&watch=true&continue=".parse().unwrap();
        let query = Query::parse(&uri);
        assert_eq!((query.limit, query.watch, query.continue_token), (Some(5), true, None));
        assert_eq!((query.labels.as_str(), query.fields.as_str()), ("a=b,c", "type!=x y"));
    }
}
