//! What controllers read from objects, as Kubernetes reads it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::store::Object;

/// A number that is not written is 0.
pub(super) fn count(value: &Value) -> u32 {
    count_or(value, 0)
}

pub(super) fn count_or(value: &Value, default: u32) -> u32 {
    value.as_u64().and_then(|value| u32::try_from(value).ok()).unwrap_or(default)
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn items(value: &Value) -> impl DoubleEndedIterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Which way Kubernetes rounds a percentage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    Up,
    Down,
}

/// A number, or a percentage of a whole: `3`, `"25%"`.
pub(super) fn share(value: &Value, of: u32, round: Round) -> Option<u32> {
    if let Some(number) = value.as_u64() {
        return u32::try_from(number).ok();
    }
    let percent: u64 = value.as_str()?.strip_suffix('%')?.parse().ok()?;
    let hundredfold = percent * u64::from(of);
    let share = if round == Round::Up { hundredfold.div_ceil(100) } else { hundredfold / 100 };
    u32::try_from(share).ok()
}

/// Kubernetes writes times in whole seconds.
pub(super) fn written(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

pub(super) fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

pub(super) fn after(at: Timestamp, time: Duration) -> Timestamp {
    SignedDuration::try_from(time).ok().and_then(|time| at.checked_add(time).ok()).unwrap_or(Timestamp::MAX)
}

pub(super) fn seconds(value: &Value) -> Duration {
    Duration::from_secs(value.as_u64().unwrap_or(0))
}

pub(super) fn generation(object: &Object) -> u64 {
    object.value["metadata"]["generation"].as_u64().unwrap_or(0)
}

pub(super) fn label<'a>(object: &'a Object, name: &str) -> &'a str {
    text(&object.value["metadata"]["labels"][name])
}

pub(super) fn annotation<'a>(object: &'a Object, name: &str) -> &'a str {
    text(&object.value["metadata"]["annotations"][name])
}

pub(super) fn created(object: &Object) -> &str {
    text(&object.value["metadata"]["creationTimestamp"])
}

pub(super) fn is_going(object: &Object) -> bool {
    object.value["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn has_finalizer(object: &Object, finalizer: &str) -> bool {
    items(&object.value["metadata"]["finalizers"]).any(|found| found == finalizer)
}

/// The one owner that looks after it.
pub(super) fn controller(object: &Object) -> Option<&Value> {
    items(&object.value["metadata"]["ownerReferences"]).find(|owner| owner["controller"] == true)
}

pub(super) fn is_controlled_by(object: &Object, uid: &str) -> bool {
    controller(object).is_some_and(|owner| owner["uid"] == uid)
}

/// Whether an object has the labels that a selector asks for. A selector that asks for nothing takes nothing here: its writer meant something else.
pub(super) fn is_selected(object: &Object, selector: &Value) -> bool {
    let labels = &object.value["metadata"]["labels"];
    let wanted = selector.get("matchLabels").unwrap_or(selector).as_object();
    wanted.is_some_and(|wanted| !wanted.is_empty() && wanted.iter().all(|(name, value)| &labels[name] == value))
}

pub(super) fn condition<'a>(status: &'a Value, of: &str) -> Option<&'a Value> {
    items(&status["conditions"]).find(|condition| condition["type"] == of)
}

pub(super) fn phase(pod: &Object) -> &str {
    text(&pod.value["status"]["phase"])
}

/// Whether its containers have ended for good.
pub(super) fn has_ended(pod: &Object) -> bool {
    matches!(phase(pod), "Failed" | "Succeeded")
}

pub(super) fn is_ready(pod: &Object) -> bool {
    condition(&pod.value["status"], "Ready").is_some_and(|ready| ready["status"] == "True")
}

pub(super) fn ready_since(pod: &Object) -> Option<Timestamp> {
    let ready = condition(&pod.value["status"], "Ready").filter(|ready| ready["status"] == "True")?;
    time(&ready["lastTransitionTime"])
}

/// Whether it was ready for as long as its controller wants to see.
pub(super) fn is_available(pod: &Object, min_ready: Duration, now: Timestamp) -> bool {
    is_ready(pod) && (min_ready.is_zero() || ready_since(pod).is_some_and(|since| after(since, min_ready) < now))
}

/// When the first of these pods that is ready becomes available, if one is about to.
pub(super) fn next_available<'a>(
    pods: impl IntoIterator<Item = &'a Object>,
    min_ready: Duration,
    now: Timestamp,
) -> Option<Timestamp> {
    let waiting = pods.into_iter().filter(|pod| is_ready(pod) && !is_available(pod, min_ready, now));
    // It must have passed: at that very moment it is not.
    waiting.filter_map(ready_since).map(|since| after(after(since, min_ready), Duration::from_millis(1))).min()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn percentages_are_rounded_as_kubernetes_does() {
        assert_eq!(share(&json!("25%"), 3, Round::Up), Some(1));
        assert_eq!(share(&json!("25%"), 3, Round::Down), Some(0));
        assert_eq!(share(&json!("50%"), 4, Round::Up), Some(2));
        assert_eq!(share(&json!(2), 10, Round::Down), Some(2));
        assert_eq!(share(&json!(null), 10, Round::Down), None);
    }

    #[test]
    fn times_are_whole_seconds() {
        let at: Timestamp = "2026-01-01T00:00:09.75Z".parse().unwrap();
        assert_eq!(written(at), "2026-01-01T00:00:09Z");
    }
}
