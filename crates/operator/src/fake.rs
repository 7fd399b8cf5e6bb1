//! An API server for tests: it keeps objects by their path, and refuses writes that are based on an outdated one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

#[derive(Clone, Default)]
pub struct Fake(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    objects: BTreeMap<String, Value>,
    writes: Vec<String>,
    last_version: u64,
    /// The beginning of the paths whose writes it refuses.
    refuses: Option<String>,
    /// What somebody writes to right after the next list.
    is_busy: Option<String>,
}

impl Fake {
    pub fn client(&self) -> Client {
        let fake = self.clone();
        let answer = move |request: Request<Body>| {
            let fake = fake.clone();
            async move { Ok::<_, Infallible>(fake.answer(request).await) }
        };
        Client::new(service_fn(answer), "default")
    }

    pub fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().store(path, object);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    pub fn delete(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path);
    }

    /// From now on it answers writes below this path with an error.
    pub fn refuse(&self, path: Option<&str>) {
        self.0.lock().unwrap().refuses = path.map(str::to_owned);
    }

    /// Somebody writes to this object right after the next list.
    pub fn touch_after_list(&self, path: &str) {
        self.0.lock().unwrap().is_busy = Some(path.to_owned());
    }

    /// The paths that were written since it was last asked.
    pub fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().writes)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = self.0.lock().unwrap().handle(&parts.method, parts.uri.path(), body);
        let (status, body) = answer.map_or_else(failure, |object| (200, object));
        Response::builder().status(status).body(Body::from(body.to_string().into_bytes())).unwrap()
    }
}

/// As the API server says it.
fn failure((code, reason): (u16, &str)) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "message": reason, "reason": reason, "code": code}))
}

impl Inner {
    fn handle(&mut self, method: &Method, path: &str, body: Value) -> Result<Value, (u16, &'static str)> {
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let path = if *method == Method::POST { format!("{path}/{name}") } else { path.to_owned() };
        let path = path.strip_suffix("/status").map_or(path.clone(), str::to_owned);
        if *method != Method::GET && self.refuses.as_ref().is_some_and(|refused| path.starts_with(refused)) {
            return Err((500, "InternalError"));
        }
        let found = self.objects.get(&path).cloned();
        let object = match (method, found) {
            (&Method::GET, Some(object)) => return Ok(object),
            (&Method::GET, None) if path.ends_with("/pods") => return Ok(self.list(&path)),
            (&Method::POST, None) => {
                let mut object = body;
                object["metadata"]["uid"] = json!(format!("uid-{}", self.last_version + 1));
                let namespace = path.split_once("/namespaces/").and_then(|(_, rest)| rest.split('/').next());
                object["metadata"]["namespace"] = json!(namespace);
                object
            }
            (&Method::POST, Some(_)) => return Err((409, "AlreadyExists")),
            (_, None) => return Err((404, "NotFound")),
            (&Method::PUT, Some(old)) => {
                if body["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"] {
                    return Err((409, "Conflict"));
                }
                body
            }
            (&Method::DELETE, Some(old)) => {
                let wanted = &body["preconditions"];
                for field in ["uid", "resourceVersion"] {
                    if !wanted[field].is_null() && wanted[field] != old["metadata"][field] {
                        return Err((409, "Conflict"));
                    }
                }
                self.writes.push(path.clone());
                self.objects.remove(&path);
                return Ok(old);
            }
            (_, Some(mut object)) => {
                let wanted = &body["metadata"]["resourceVersion"];
                if !wanted.is_null() && *wanted != object["metadata"]["resourceVersion"] {
                    return Err((409, "Conflict"));
                }
                json_patch::merge(&mut object, &body);
                object
            }
        };
        self.writes.push(path.clone());
        Ok(self.store(&path, object))
    }

    fn list(&mut self, path: &str) -> Value {
        let below = format!("{path}/");
        let found = self.objects.iter().filter(|(path, _)| path.starts_with(&below));
        let items: Vec<Value> = found.map(|(_, object)| object.clone()).collect();
        if let Some((path, object)) = self.is_busy.take().and_then(|path| self.objects.get_key_value(&path)) {
            self.store(&path.clone(), object.clone());
        }
        json!({"metadata": {}, "items": items})
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.last_version += 1;
        object["metadata"]["resourceVersion"] = json!(self.last_version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }
}
