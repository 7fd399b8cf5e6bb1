//! Answers of the API server.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use crate::kinds::Kind;
use crate::store::{Object, Refusal};

pub type Answer = Response<Body>;

pub fn json(body: impl Into<Bytes>) -> Answer {
    answer(StatusCode::OK, Body::from(body.into()))
}

pub fn stream(body: Body) -> Answer {
    answer(StatusCode::OK, body)
}

fn answer(code: StatusCode, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

pub fn object(object: &Object, is_metadata: bool) -> Answer {
    let mut text = Vec::new();
    if is_metadata {
        object.write_metadata(&mut text);
    } else {
        object.write(&mut text);
    }
    json(text)
}

/// An object that was made, or would have been.
pub fn created(made: &Object, is_metadata: bool) -> Answer {
    let mut answer = object(made, is_metadata);
    *answer.status_mut() = StatusCode::CREATED;
    answer
}

/// Part of what a collection holds.
pub struct Page<'a> {
    pub kind: Kind,
    pub items: Vec<Arc<Object>>,
    pub revision: u64,
    /// Where the next page begins; empty on the last one.
    pub continue_token: &'a str,
    pub is_metadata: bool,
}

impl Page<'_> {
    pub fn answer(self) -> Answer {
        let Self { kind, items, revision, continue_token, is_metadata } = self;
        let (of, api_version) = if is_metadata {
            ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned())
        } else {
            (format!("{}List", kind.kind()), kind.api_version())
        };
        let mut text = format!(
            r#"{{"kind":"{of}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{revision}","continue":"{continue_token}"}},"items":["#
        )
        .into_bytes();
        for (place, item) in items.iter().enumerate() {
            if place > 0 {
                text.push(b',');
            }
            if is_metadata { item.write_metadata(&mut text) } else { item.write_item(&mut text) }
        }
        text.extend_from_slice(b"]}");
        json(text)
    }
}

/// What is left of an object that is gone.
pub fn deleted(object: &Object) -> Answer {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": object.key.name,
            "group": object.key.kind.group(),
            "kind": object.key.kind.plural(),
            "uid": object.uid(),
        },
    });
    json(status.to_string())
}

pub fn refused(refusal: &Refusal) -> Answer {
    let code = StatusCode::from_u16(refusal.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = answer(code, Body::from(status(refusal)));
    if code == StatusCode::TOO_MANY_REQUESTS {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

/// A refusal as the API server writes it.
pub fn status(refusal: &Refusal) -> String {
    let Refusal { code, reason, message } = refusal;
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    })
    .to_string()
}

/// What is not even a kind is answered with plain text.
pub fn no_such_path() -> Answer {
    let mut answer = answer(StatusCode::NOT_FOUND, Body::from("404 page not found\n"));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
