//! Whether a content may follow the version before it, by the rules of its policy.

use kube::Client;
use lockstep_core::ConfigRef;
use lockstep_core::validation::{Validation, validate};

use crate::content::Content;
use crate::index::ConfigId;

/// Why the content may not be released, if it may not. `released` is the object of the version before it.
pub async fn verdict(
    client: &Client,
    id: &ConfigId,
    rules: Validation,
    new: Content,
    released: &str,
) -> kube::Result<(Content, Option<String>)> {
    let (rules, new, needs_old) = aside(move || {
        let needs_old = rules.needs_old(&new.data());
        (rules, new, needs_old)
    })
    .await;
    let old = if needs_old {
        let config = ConfigRef::new(id.config.kind, released);
        Content::read(client, &ConfigId { namespace: id.namespace.clone(), config }).await?
    } else {
        None
    };
    let judge = move || {
        let verdict = validate(&rules, &new.data(), old.as_ref().map(Content::data).as_ref());
        (new, verdict.err().map(|invalid| invalid.to_string()))
    };
    Ok(aside(judge).await)
}

/// Rules can take a while, so they do not run on the threads that serve others.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
