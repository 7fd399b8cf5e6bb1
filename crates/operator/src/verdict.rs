//! Whether a content may follow the version before it, by the rules of its policy.

use std::sync::Arc;

use kube::Client;
use lockstep_core::ConfigRef;
use lockstep_core::validation::{Invalid, Validation, validate};

use crate::content::Content;
use crate::environment::Workshop;
use crate::index::ConfigId;
use crate::workshop::Effort;

/// Why the content may not be released, if it may not. `released` is the object of the version before it.
pub async fn verdict(
    client: &Client,
    workshop: &Workshop,
    id: &ConfigId,
    rules: Validation,
    new: &Arc<Content>,
    released: &str,
) -> kube::Result<Option<String>> {
    let effort = if rules.is_heavy(&new.data()) { Effort::Heavy } else { Effort::Light };
    let rules = Arc::new(rules);
    let look = {
        let (rules, new) = (Arc::clone(&rules), Arc::clone(new));
        move || rules.needs_old(&new.data())
    };
    let needs_old = match workshop.run(effort, look).await {
        Ok(needs_old) => needs_old,
        Err(fault) => return Ok(Some(Invalid::Policy(fault).to_string())),
    };
    let old = if needs_old {
        let config = ConfigRef::new(id.config.kind, released);
        Content::read(client, &ConfigId { namespace: id.namespace.clone(), config }).await?
    } else {
        None
    };
    let new = Arc::clone(new);
    let judge = move || validate(&rules, &new.data(), old.as_ref().map(Content::data).as_ref());
    let verdict = workshop.run(effort, judge).await.unwrap_or_else(|fault| Err(Invalid::Policy(fault)));
    Ok(verdict.err().map(|invalid| invalid.to_string()))
}
