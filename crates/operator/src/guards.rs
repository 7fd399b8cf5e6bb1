//! One fence for everything that is written: a replica that slept, and does not know that another one leads by now, must not undo what that
//! one did.
//!
//! Every write says what it is based on, and the API server refuses it if that is not so any more:
//!
//! - what is changed or deleted, by the resource version of the object as it was when the decision was made. Nobody fetches a newer one to
//!   have a refused write go through: the decision is made again instead;
//! - a pin table, which many configs share, by the entry of the config as it was, and by who leads if anything else in it changed since
//!   (`tables.rs`);
//! - what is made new, by its name: that of a version follows from its content, and its number is put down in the VersionedConfig first; that of
//!   a release from the number of those before it; the others have one name for good. What is there already counts as made only if it is
//!   the very same and nobody has done anything with it.
//!
//! So a late write of a former leader succeeds only where nobody has written since, and then it is as good as one that was in time. And it is
//! late only by the time that it takes to arrive: once its term is over, a leader sends none (`client::fenced`).
//! Exceptions: Events, by which nobody decides (`events.rs`).

use kube::api::{DeleteParams, Preconditions};
use kube::core::Status;

use crate::facts::ResourceVersion;

/// Somebody else wrote first, as far as we can see ourselves: in the words of the API server, so that it is treated as its answer is.
pub fn conflict(message: &str) -> kube::Error {
    kube::Error::Api(Status::failure(message, "Conflict").with_code(409).boxed())
}

/// There is no place for it any more, as far as we can see ourselves.
pub fn not_found(message: &str) -> kube::Error {
    kube::Error::Api(Status::failure(message, "NotFound").with_code(404).boxed())
}

/// Deletes an object only as it was.
pub fn delete_as_it_was(uid: &str, at: ResourceVersion) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(at.0.to_string()) };
    DeleteParams::background().preconditions(preconditions)
}
