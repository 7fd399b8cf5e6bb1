//! Rules about what pods run.

use lockstep_core::references::references;
use lockstep_core::{ConfigRef, Pins};

use super::reading::{controller, pinned, pins_text, template};
use super::{ChangeRule, Seen};
use crate::World;
use crate::kinds::{Key, Kind};
use crate::store::Object;

pub(super) const TEMPLATE: ChangeRule = ChangeRule {
    name: "a_pod_names_what_its_template_pins",
    says: "a pod is made with the pins of the template that it is made from, and names exactly those versions, never a mixture",
    check: |seen, change| {
        let pod = change.after.as_ref().filter(|_| change.key.kind == Kind::Pod && change.before.is_none())?;
        let maker = maker(seen, pod)?;
        let plain = template(maker);
        let pins = Pins::read(pins_text(plain));
        if Pins::read(pins_text(&pod.value)) != pins {
            return Some(format!("{} has other pins than {}", pod.key, maker.key));
        }
        let named = references(&pod.value["spec"]);
        let mut wrong = references(&plain["spec"]).into_iter().filter_map(|reference| {
            let wanted = pinned(&pins, &reference.config)?;
            let found = named.iter().find(|found| found.pointer == reference.pointer)?;
            (found.config.name != wanted).then(|| format!("{} instead of {wanted}", found.config.name))
        });
        wrong.next().map(|wrong| format!("{} of {} names {wrong}", pod.key, maker.key))
    },
};

/// What made a pod, if that has a template of its own that pods cannot have left behind.
fn maker<'a>(seen: &'a Seen, pod: &Object) -> Option<&'a Object> {
    let owner = controller(pod)?;
    let kind = Kind::of(owner["apiVersion"].as_str()?, owner["kind"].as_str()?)?;
    // The others make pods of old revisions, too.
    if !matches!(kind, Kind::ReplicaSet | Kind::Job | Kind::ReplicationController) {
        return None;
    }
    let found = seen.objects.get(&Key::new(kind, &pod.key.namespace, owner["name"].as_str()?))?;
    (owner["uid"] == found.uid()).then_some(found)
}

/// Compares what containers really read with the pins of their pods.
pub(super) fn ran(seen: &mut Seen, world: &World) -> Option<String> {
    let since = seen.ran_until;
    let mut latest = since;
    for (uid, ran) in world.ran.iter().filter(|(_, ran)| Some(ran.at) > since) {
        latest = latest.max(Some(ran.at));
        let Some(pod) = world.store.get(&ran.pod).filter(|pod| pod.uid() == uid) else { continue };
        let pins = Pins::read(pins_text(&pod.value));
        for (config, (object, content)) in &ran.references {
            let Ok(config) = config.parse::<ConfigRef>() else { continue };
            let Some(wanted) = pinned(&pins, &config) else { continue };
            if *object != wanted {
                return Some(format!("{} read {object} for {config}, and is pinned to {wanted}", ran.pod));
            }
            let kind = super::reading::object_kind(&config);
            let version = world.store.get(&Key::new(kind, &ran.pod.namespace, &wanted));
            let holds = version.map(|version| version.value["data"].to_string());
            if holds.is_some_and(|holds| holds != *content) {
                return Some(format!("{} read other content than {wanted} has", ran.pod));
            }
        }
    }
    seen.ran_until = latest;
    None
}
