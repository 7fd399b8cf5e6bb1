//! Workloads are pinned in the write that creates or changes them, whatever kind they are and however they are written.

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams, PostParams};
use lockstep_core::admission::{Template, TemplateWrite, pins_after};
use lockstep_core::references::references;
use lockstep_core::{Table, names};
use lockstep_testing::{SHORT, Scenario, eventually};
use proptest::collection::vec;
use proptest::strategy::Strategy;
use serde_json::{Value, json};

use super::shape::{
    Place, Use, all_uses, any_pins, any_pins_or_none, any_use, foreign_owner, moved_pins, owner, pod_spec, samples,
    set_pins, table,
};
use super::stage::{all, create, dry_run, objects, with_table};

const SEQUENCES_PER_KIND: usize = 3;
const NEW_WORKLOADS_PER_KIND: usize = 8;

/// A kind that makes pods from a template, in a form that makes none.
#[derive(Debug, Clone, Copy)]
struct Kind {
    api_version: &'static str,
    name: &'static str,
    /// Where its template is.
    template: &'static str,
    can_change: bool,
}

const KINDS: [Kind; 8] = [
    Kind { api_version: "apps/v1", name: "Deployment", template: "/spec/template", can_change: true },
    Kind { api_version: "apps/v1", name: "StatefulSet", template: "/spec/template", can_change: true },
    Kind { api_version: "apps/v1", name: "DaemonSet", template: "/spec/template", can_change: true },
    Kind { api_version: "apps/v1", name: "ReplicaSet", template: "/spec/template", can_change: true },
    Kind { api_version: "v1", name: "ReplicationController", template: "/spec/template", can_change: true },
    Kind { api_version: "batch/v1", name: "Job", template: "/spec/template", can_change: false },
    Kind { api_version: "batch/v1", name: "CronJob", template: "/spec/jobTemplate/spec/template", can_change: true },
    Kind { api_version: "argoproj.io/v1alpha1", name: "Rollout", template: "/spec/template", can_change: true },
];

/// What a user has in a file.
#[derive(Debug, Clone)]
struct Manifest {
    image: u32,
    uses: Vec<Use>,
}

/// One write of an existing workload.
#[derive(Debug, Clone)]
struct Write {
    spec: SpecChange,
    pins: PinsChange,
    how: How,
}

#[derive(Debug, Clone)]
enum SpecChange {
    None,
    NewImage,
    AddReference(Use),
    RemoveReference,
}

#[derive(Debug, Clone)]
enum PinsChange {
    None,
    Remove,
    Set(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Patch,
    ServerSideApply,
    /// As `kubectl replace` does with a manifest.
    Replace,
    /// As `kubectl edit` does: with all that was read, the uid included.
    ReplaceWhatWasRead,
}

#[tokio::test]
async fn a_new_workload_of_any_kind_joins_as_the_core_says() {
    with_table("workloads-new", table(), |stage, table| async move {
        let cases = samples(&(vec(any_use(), 0..16), any_pins_or_none()), NEW_WORKLOADS_PER_KIND);
        let new = KINDS.into_iter().flat_map(|kind| cases.iter().map(move |case| (kind, case)));
        let (stage, table) = (&stage, &table);
        all(new.map(|(kind, (uses, pins))| async move {
            let written = dry_run(stage, &kind.workload("new", &manifest(uses), pins)).await?;
            expect_pins(None, template(kind, &written)?, pins, false, table)
                .with_context(|| format!("a new {} with {uses:?} and pins {pins:?}", kind.name))
        }))
        .await
    })
    .await;
}

#[tokio::test]
async fn every_write_of_a_workload_leaves_the_pins_that_the_core_says() {
    with_table("workloads-writes", table(), |stage, table| async move {
        let sequences = samples(&(vec(any_use(), 1..12), any_writes()), SEQUENCES_PER_KIND);
        let kinds = KINDS.into_iter().filter(|kind| kind.can_change);
        let cases = kinds.flat_map(|kind| sequences.iter().enumerate().map(move |(index, case)| (kind, index, case)));
        let (stage, table) = (&stage, &table);
        all(cases.map(|(kind, index, (uses, writes))| async move {
            write_all(stage, table, kind, format!("writes-{index}"), manifest(uses), writes).await.map(drop)
        }))
        .await
    })
    .await;
}

#[tokio::test]
async fn a_new_image_keeps_the_version_that_a_release_under_way_has_given_it() {
    with_table("workloads-moved", table(), |stage, table| async move {
        let (stage, table) = (&stage, &table);
        let new_image = |how| Write { spec: SpecChange::NewImage, pins: PinsChange::None, how };
        let moved = Write { spec: SpecChange::None, pins: PinsChange::Set(moved_pins()), how: How::Patch };
        let new_images = [How::Patch, How::ServerSideApply, How::Replace, How::ReplaceWhatWasRead].map(new_image);
        let writes = &[[moved].as_slice(), &new_images].concat();
        all(KINDS.into_iter().filter(|kind| kind.can_change).map(|kind| async move {
            let manifest = manifest(&all_uses(Place::Volume));
            let written = write_all(stage, table, kind, "moved".to_owned(), manifest, writes).await?;
            let pins = pins_text(template(kind, &written)?);
            let expected = ["configmap/app=configmap-app-3", "configmap/app-x=configmap-app-x-4"];
            ensure!(expected.iter().all(|pin| pins.split(',').any(|found| found == *pin)), "{}: {pins}", kind.name);
            Ok(())
        }))
        .await
    })
    .await;
}

#[tokio::test]
async fn what_another_template_made_is_left_alone() {
    with_table("workloads-owned", table(), |stage, table| async move {
        let uses = samples(&vec(any_use(), 12), 1).remove(0);
        for kind in KINDS.into_iter().filter(|kind| ["ReplicaSet", "Job"].contains(&kind.name)) {
            for pins in ["", "configmap/app=configmap-app-0"] {
                let mut workload = kind.workload("owned", &manifest(&uses), pins);
                workload["metadata"]["ownerReferences"] = owner("Deployment", true);
                let written = dry_run(&stage, &workload).await?;
                let found = pins_text(template(kind, &written)?);
                ensure!(found == pins, "the pins {pins:?} of an owned {} are now {found:?}", kind.name);

                // Nobody controls it, or somebody whose template is not pinned: a JobSet, a ScaledJob.
                for other in [owner("Deployment", false), foreign_owner("ScaledJob")] {
                    workload["metadata"]["ownerReferences"] = other;
                    let written = dry_run(&stage, &workload).await?;
                    expect_pins(None, template(kind, &written)?, pins, false, &table)
                        .with_context(|| format!("a {} of {}", kind.name, workload["metadata"]["ownerReferences"]))?;
                }
            }
        }
        Ok(())
    })
    .await;
}

/// All ways to write a workload, in any order.
fn any_writes() -> impl Strategy<Value = Vec<Write>> {
    (vec(any_pins(), 6), vec(any_use(), 4)).prop_map(|(pins, uses)| all_writes(pins, uses)).prop_shuffle()
}

fn all_writes(pins: Vec<String>, uses: Vec<Use>) -> Vec<Write> {
    use How::{Patch, Replace, ReplaceWhatWasRead, ServerSideApply};
    let mut pins = pins.into_iter().map(PinsChange::Set);
    let mut other_pins = || pins.next().unwrap_or(PinsChange::None);
    let mut uses = uses.into_iter().map(SpecChange::AddReference);
    let mut one_more = || uses.next().unwrap_or(SpecChange::None);
    let write = |spec, pins, how| Write { spec, pins, how };
    vec![
        write(SpecChange::None, PinsChange::None, Patch),
        write(SpecChange::None, PinsChange::None, ServerSideApply),
        write(SpecChange::None, PinsChange::None, Replace),
        write(SpecChange::None, PinsChange::None, ReplaceWhatWasRead),
        write(SpecChange::NewImage, PinsChange::None, Patch),
        write(SpecChange::NewImage, PinsChange::None, ServerSideApply),
        write(SpecChange::NewImage, PinsChange::None, Replace),
        write(SpecChange::NewImage, PinsChange::None, ReplaceWhatWasRead),
        write(one_more(), PinsChange::None, Patch),
        write(one_more(), PinsChange::None, Replace),
        write(SpecChange::RemoveReference, PinsChange::None, Patch),
        write(SpecChange::RemoveReference, PinsChange::None, Replace),
        write(SpecChange::None, other_pins(), Patch),
        write(SpecChange::None, other_pins(), Replace),
        write(SpecChange::NewImage, other_pins(), Patch),
        write(SpecChange::RemoveReference, other_pins(), Patch),
        write(one_more(), other_pins(), ReplaceWhatWasRead),
        write(SpecChange::None, PinsChange::Remove, Patch),
        write(SpecChange::None, PinsChange::Remove, ReplaceWhatWasRead),
        write(SpecChange::NewImage, PinsChange::Remove, Patch),
        write(one_more(), other_pins(), Patch),
    ]
}

async fn write_all(
    stage: &Scenario,
    table: &Table,
    kind: Kind,
    name: String,
    mut manifest: Manifest,
    writes: &[Write],
) -> Result<Value> {
    let mut workload = create(stage, &kind.workload(&name, &manifest, "")).await?;
    expect_pins(None, template(kind, &workload)?, "", false, table)?;
    for (index, write) in writes.iter().enumerate() {
        write.spec.apply_to(&mut manifest);
        let (before, after) = perform(stage, kind, &name, &manifest, write).await?;
        let before = template(kind, &before)?;
        let sent_pins = write.sent_pins(pins_text(before));
        expect_pins(Some(before), template(kind, &after)?, sent_pins, write.how != How::Replace, table)
            .and_then(|()| expect_written(kind, &after, &manifest))
            .with_context(|| format!("{} {name}, write {index}: {write:?} of {before}", kind.name))?;
        workload = after;
    }
    ensure!(workload["metadata"]["generation"] != 1, "no write changed anything");
    Ok(workload)
}

/// The workload before and after a write. Its controller may write in between (Argo Rollouts tidies up what it is given): then again.
async fn perform(
    stage: &Scenario,
    kind: Kind,
    name: &str,
    manifest: &Manifest,
    write: &Write,
) -> Result<(Value, Value)> {
    let workload = kind.workload(name, manifest, "");
    let api = objects(stage, &workload)?;
    eventually("a write without a conflict", SHORT, async || {
        let before = serde_json::to_value(api.get(name).await?)?;
        let after = match write.how {
            How::Patch => {
                let pins = match &write.pins {
                    PinsChange::None => json!({}),
                    PinsChange::Remove => json!({"metadata": {"annotations": {names::PINS: null}}}),
                    PinsChange::Set(pins) => json!({"metadata": {"annotations": {names::PINS: pins}}}),
                };
                let patch = kind.within_template(merged(pins, json!({"spec": kind.pod_spec(manifest)})));
                let patch =
                    merged(patch, json!({"metadata": {"resourceVersion": before["metadata"]["resourceVersion"]}}));
                api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?
            }
            How::ServerSideApply => {
                let mut workload = workload.clone();
                workload["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
                api.patch(name, &PatchParams::apply("user").force(), &Patch::Apply(&workload)).await?
            }
            How::Replace | How::ReplaceWhatWasRead => {
                let sent = write.replacement(kind, &before, workload.clone())?;
                api.replace(name, &PostParams::default(), &serde_json::from_value(sent)?).await?
            }
        };
        Ok((before, serde_json::to_value(after)?))
    })
    .await
}

impl SpecChange {
    fn apply_to(&self, manifest: &mut Manifest) {
        match self {
            Self::None => {}
            Self::NewImage => manifest.image += 1,
            Self::AddReference(used) => manifest.uses.push(used.clone()),
            Self::RemoveReference => drop(manifest.uses.pop()),
        }
    }
}

impl Write {
    /// The pins that the API server is sent, as it merges them with what was before.
    fn sent_pins<'a>(&'a self, before: &'a str) -> &'a str {
        match (&self.pins, self.how) {
            (PinsChange::Set(pins), _) => pins,
            (PinsChange::Remove, _) | (PinsChange::None, How::Replace) => "",
            (PinsChange::None, _) => before,
        }
    }

    fn replacement(&self, kind: Kind, before: &Value, mut workload: Value) -> Result<Value> {
        let pins = self.sent_pins(pins_text(template(kind, before)?)).to_owned();
        set_pins(workload.pointer_mut(kind.template).context("no template")?, &pins);
        match self.how {
            How::ReplaceWhatWasRead => workload["metadata"] = before["metadata"].clone(),
            _ => workload["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone(),
        }
        Ok(workload)
    }
}

impl Kind {
    fn workload(self, name: &str, manifest: &Manifest, pins: &str) -> Value {
        let mut template = json!({"metadata": {"labels": {"app": name}}, "spec": self.pod_spec(manifest)});
        set_pins(&mut template, pins);
        let mut workload = json!({"apiVersion": self.api_version, "kind": self.name, "metadata": {"name": name}});
        workload["spec"] = self.spec_without_pods(name);
        merged(workload, self.within_template(template))
    }

    fn spec_without_pods(self, name: &str) -> Value {
        let selector = json!({"matchLabels": {"app": name}});
        match self.name {
            "DaemonSet" => json!({"selector": selector}),
            "ReplicationController" => json!({"replicas": 0, "selector": {"app": name}}),
            "Job" => json!({"suspend": true}),
            "CronJob" => json!({"suspend": true, "schedule": "0 0 1 1 *"}),
            "StatefulSet" => json!({"replicas": 0, "selector": selector, "serviceName": name}),
            "Rollout" => json!({"replicas": 0, "selector": selector, "strategy": {"canary": {}}}),
            _ => json!({"replicas": 0, "selector": selector}),
        }
    }

    fn pod_spec(self, manifest: &Manifest) -> Value {
        let mut spec = pod_spec(&format!("none:{}", manifest.image), &manifest.uses);
        // Values that the API server writes in another way, or completes: the same manifest must still count as the same.
        spec["containers"][0]["resources"] = json!({"limits": {"cpu": "1000m", "memory": "0.5Gi"}});
        spec["containers"][0]["ports"] = json!([{"containerPort": 8080}]);
        match self.name {
            "Job" | "CronJob" => spec["restartPolicy"] = json!("Never"),
            // No node has it.
            "DaemonSet" => spec["nodeSelector"] = json!({"lockstep.dev/e2e": "nowhere"}),
            _ => {}
        }
        spec
    }

    fn within_template(self, value: Value) -> Value {
        self.template.rsplit('/').filter(|step| !step.is_empty()).fold(value, |value, step| json!({step: value}))
    }
}

fn manifest(uses: &[Use]) -> Manifest {
    Manifest { image: 1, uses: uses.to_vec() }
}

fn template(kind: Kind, workload: &Value) -> Result<&Value> {
    workload.pointer(kind.template).with_context(|| format!("no template in {workload}"))
}

fn pins_text(template: &Value) -> &str {
    template["metadata"]["annotations"][names::PINS].as_str().unwrap_or_default()
}

/// Compares the pins of a template as it was written with those that the core gives it.
fn expect_pins(
    before: Option<&Value>,
    after: &Value,
    sent_pins: &str,
    knows_object: bool,
    table: &Table,
) -> Result<()> {
    let mut sent = after.clone();
    set_pins(&mut sent, sent_pins);
    let write = TemplateWrite { old: before.map(Template), new: Template(&sent), knows_object };
    let (found, expected) = (pins_text(after), pins_after(write, table).to_string());
    ensure!(found == expected, "the pins are {found:?} instead of {expected:?}");
    Ok(())
}

/// What the user wrote stays as written.
fn expect_written(kind: Kind, after: &Value, manifest: &Manifest) -> Result<()> {
    let (written, sent) = (&template(kind, after)?["spec"], kind.pod_spec(manifest));
    ensure!(references(written) == references(&sent), "the references are {written}");
    ensure!(written["containers"][0]["image"] == sent["containers"][0]["image"], "the image is not the one sent");
    Ok(())
}

/// One object with the fields of both.
fn merged(mut one: Value, other: Value) -> Value {
    match (one.as_object_mut(), other) {
        (Some(fields), Value::Object(others)) => {
            for (name, value) in others {
                let field = fields.remove(&name).unwrap_or_default();
                fields.insert(name, merged(field, value));
            }
            one
        }
        (_, other) => other,
    }
}
