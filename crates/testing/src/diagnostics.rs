//! What a person would look at first when a test failed: pods and why they wait, events, and logs of what is not ready.

use std::fmt::Write;

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client};

use crate::scenario::is_ready;

const EVENT_LIMIT: usize = 60;
const LOG_LINES: i64 = 30;

pub(crate) async fn describe(client: &Client, namespace: &str) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let mut text = String::new();
    match pods.list(&ListParams::default()).await {
        Ok(found) => {
            for pod in &found.items {
                text += &describe_pod(pod);
                if !is_ready(pod) {
                    text += &last_logs(&pods, pod).await;
                }
            }
        }
        Err(error) => _ = writeln!(text, "pods cannot be listed: {error}"),
    }
    match events.list(&ListParams::default()).await {
        Ok(found) => text += &describe_events(found.items),
        Err(error) => _ = writeln!(text, "events cannot be listed: {error}"),
    }
    text
}

fn describe_pod(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or("?");
    let status = pod.status.clone().unwrap_or_default();
    let mut text = format!("pod {name}: {} {}\n", status.phase.unwrap_or_default(), status.message.unwrap_or_default());
    let init = status.init_container_statuses.unwrap_or_default();
    for container in init.iter().chain(status.container_statuses.iter().flatten()) {
        _ = writeln!(text, "  {}", describe_container(container));
    }
    text
}

fn describe_container(container: &ContainerStatus) -> String {
    let state = container.state.clone().unwrap_or_default();
    let doing = if let Some(waiting) = state.waiting {
        format!("waiting: {} {}", waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
    } else if let Some(ended) = state.terminated {
        format!("ended with {}: {}", ended.exit_code, ended.reason.unwrap_or_default())
    } else {
        "running".to_owned()
    };
    format!("{}: {doing}, ready {}, {} restarts", container.name, container.ready, container.restart_count)
}

async fn last_logs(pods: &Api<Pod>, pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let containers = pod.spec.iter().flat_map(|spec| spec.containers.iter());
    let mut text = String::new();
    for container in containers {
        for previous in [true, false] {
            let which = LogParams {
                container: Some(container.name.clone()),
                previous,
                tail_lines: Some(LOG_LINES),
                ..LogParams::default()
            };
            // A container that never ran has no log; its state above says why.
            if let Ok(log) = pods.logs(name, &which).await {
                for line in log.lines() {
                    _ = writeln!(
                        text,
                        "  log of {}{}: {line}",
                        container.name,
                        if previous { " (before)" } else { "" }
                    );
                }
            }
        }
    }
    text
}

fn describe_events(mut events: Vec<Event>) -> String {
    events.sort_by_key(|event| event.last_timestamp.clone().map(|time| time.0));
    let mut text = String::new();
    for event in events.iter().rev().take(EVENT_LIMIT).rev() {
        let object = &event.involved_object;
        let (kind, name) = (object.kind.as_deref().unwrap_or("?"), object.name.as_deref().unwrap_or("?"));
        let (reason, message) = (event.reason.as_deref().unwrap_or("?"), event.message.as_deref().unwrap_or(""));
        _ = writeln!(text, "event {kind}/{name} {reason}: {message}");
    }
    text
}
