//! `lockstep doctor`: whether all of Lockstep is there and well, and what to do where it is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use http::Request;
use http::header::DATE;
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingAdmissionPolicy};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::client::Body;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use lockstep_api::{ConditionType, PinTable, VersionedConfig};
use lockstep_core::references::{Role, references};
use lockstep_core::{ConfigKind, ConfigRef, Pin, Pins, names};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::cluster::{Cluster, NOT_INSTALLED};
use crate::output::{BAD, FAINT, Format, GOOD, MOVING, View, harmless, paint, print, render};

/// A clock that is further off than this confuses people who compare times.
const SKEW_LIMIT_SECONDS: i64 = 10;
/// A lease that is older than this is nobody's.
const LEASE_LIMIT_SECONDS: i64 = 30;
/// A lease that nobody gave up expires after 15 s: so long nobody may lead, and all is well.
const LEADER_PATIENCE: Duration = Duration::from_secs(20);
const LEADER_POLL: Duration = Duration::from_millis(500);
const KINDS: [&str; 4] = ["VersionedConfig", "Release", "ReleasePolicy", "PinTable"];
/// Without these, pods and workloads do not get their versions in mode `policy`.
const PINNING_POLICIES: [&str; 4] = ["lockstep-cronjobs", "lockstep-pins", "lockstep-table", "lockstep-workloads"];
/// Without these, a version in use can be deleted, and a name given twice.
const GUARDING_POLICIES: [&str; 4] =
    ["lockstep-version-names", "lockstep-version-names-table", "lockstep-versions", "lockstep-versions-in-use"];

/// Flags of `lockstep doctor`.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Look at the installation only, and not at what you may do: what `helm test` runs
    #[arg(long)]
    installation: bool,
}

/// Why something could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unseen {
    /// The caller lacks this right.
    Forbidden(String),
    Failed(String),
}

impl Unseen {
    fn new(error: kube::Error, right: impl Into<String>) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => Self::Forbidden(right.into()),
            kube::Error::Api(status) => Self::Failed(status.message),
            other => Self::Failed(other.to_string()),
        }
    }
}

type Seen<T> = Result<T, Unseen>;

/// All that is looked at.
#[derive(Debug, Clone)]
struct Facts {
    address: String,
    namespace: String,
    server: Seen<String>,
    /// How far the server's clock is ahead of ours.
    skew_seconds: Option<i64>,
    kinds: Seen<BTreeSet<String>>,
    operators: Seen<Vec<Operator>>,
    lease: Seen<Option<Leader>>,
    pinning: Seen<BTreeSet<String>>,
    guarding: Seen<BTreeSet<String>>,
    webhook: Seen<Option<Webhook>>,
    missing_rights: Seen<Vec<String>>,
    table: Seen<bool>,
    configs: Seen<Vec<VersionedConfig>>,
    waiting: Seen<Vec<Waiting>>,
}

/// A pod that is not ready, and what it is pinned to. `configs_check` speaks of those whose version is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    pod: String,
    version: ConfigRef,
}

#[derive(Debug, Clone)]
struct Operator {
    namespace: String,
    image: String,
    ready: i32,
    wanted: i32,
    /// `policy`, `webhook` or `template`.
    mode: String,
}

#[derive(Debug, Clone)]
struct Leader {
    holder: String,
    renewed_seconds_ago: i64,
}

#[derive(Debug, Clone)]
struct Webhook {
    is_trusted: bool,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<Outcome> {
    let mut checks = match server(cluster).await {
        (Err(Unseen::Failed(error)), _) => vec![Check::new(Level::Fail, "cluster", error, "")],
        (version, date) => diagnose(&gather(cluster, version, date).await),
    };
    if flags.installation {
        checks.retain(|check| !ABOUT_THE_CALLER.contains(&check.about));
    }
    let diagnosis = Diagnosis { checks };
    print(&render(&diagnosis, format)?)?;
    Ok(outcome(&diagnosis.checks, if flags.installation { OPERATOR_CHECK } else { RIGHTS_CHECK }))
}

/// What could not be looked at for lack of rights is not unwell, as long as what was asked for first of all was looked at.
fn outcome(checks: &[Check], first_of_all: &str) -> Outcome {
    let has_failed = checks.iter().any(|check| check.level == Level::Fail);
    let is_seen = checks.iter().any(|check| check.about == first_of_all && check.level != Level::NotChecked);
    if has_failed || !is_seen { Outcome::Unwell } else { Outcome::Done }
}

/// Who leads. After an upgrade it takes the next one a moment, or until the old one's lease has expired.
async fn lease(leases: &Api<Lease>, now: Timestamp, patience: Duration) -> Seen<Option<Leader>> {
    let right = || format!("get leases in namespace {}", leases.namespace().unwrap_or_default());
    let start = Instant::now();
    loop {
        let at = SignedDuration::try_from(start.elapsed()).map_or(now, |elapsed| now + elapsed);
        let found = leases.get_opt(names::FIELD_MANAGER).await;
        let found = found.map(|lease| leader(lease, at)).map_err(|error| Unseen::new(error, right()));
        if !matches!(found, Ok(None)) || start.elapsed() >= patience {
            return found;
        }
        sleep(LEADER_POLL).await;
    }
}

async fn gather(cluster: &Cluster, server: Seen<String>, date: Option<Timestamp>) -> Facts {
    let client = &cluster.client;
    let now = Timestamp::now();
    let skew_seconds = date.map(|date| date.duration_since(now).as_secs());
    let operators = operators(cluster).await;
    let own = operators.as_ref().ok().and_then(|found| found.first()).map(|found| found.namespace.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), own.as_deref().unwrap_or("lockstep-system"));
    let is_ready = operators.as_ref().is_ok_and(|found| found.iter().any(|operator| operator.ready > 0));
    let lease = lease(&leases, date.unwrap_or(now), if is_ready { LEADER_PATIENCE } else { Duration::ZERO }).await;
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let webhook = webhooks.get_opt(names::FIELD_MANAGER).await;
    let webhook = webhook.map_err(|error| Unseen::new(error, "get mutatingwebhookconfigurations"));
    let table = cluster.api::<PinTable>().get_opt(names::PIN_TABLE).await;
    let table = table.map_err(|error| Unseen::new(error, format!("get pintables in namespace {}", cluster.namespace)));
    Facts {
        address: cluster.address.clone(),
        namespace: cluster.namespace.clone(),
        server,
        skew_seconds,
        kinds: kinds(cluster).await,
        operators,
        lease,
        pinning: mutating_policies(cluster).await,
        guarding: validating_policies(cluster).await,
        webhook: webhook.map(|found| {
            found.map(|found| Webhook {
                is_trusted: found.webhooks.iter().flatten().all(|hook| hook.client_config.ca_bundle.is_some()),
            })
        }),
        missing_rights: missing_rights(cluster).await,
        table: table.map(|found| found.is_some()),
        configs: configs(cluster).await,
        waiting: waiting(cluster).await,
    }
}

/// The pods of the namespace that wait for a version that is not there.
async fn waiting(cluster: &Cluster) -> Seen<Vec<Waiting>> {
    let found = cluster.api::<Pod>().list(&ListParams::default()).await;
    let found = found.map_err(|error| Unseen::new(error, format!("list pods in namespace {}", cluster.namespace)))?;
    let (mut waiting, mut known) = (Vec::new(), BTreeMap::new());
    for needed in found.items.iter().flat_map(needs) {
        if !known.contains_key(&needed.version) && known.len() < MOST_LOOKED_UP {
            known.insert(needed.version.clone(), exists(cluster, &needed.version).await?);
        }
        if known.get(&needed.version) == Some(&false) {
            waiting.push(needed);
        }
    }
    Ok(waiting)
}

/// The versions that a pod is pinned to and names, if it is not ready.
fn needs(pod: &Pod) -> Vec<Waiting> {
    let status = pod.status.as_ref();
    let has_ended =
        status.and_then(|status| status.phase.as_deref()).is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase));
    let mut conditions = status.into_iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    if has_ended || is_ready || pod.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let pins = Pins::read(pod.annotations().get(names::PINS).map(String::as_str).unwrap_or_default());
    let named: BTreeSet<ConfigRef> = references(&json!(pod.spec))
        .into_iter()
        .filter_map(|found| (found.role == Role::Content).then_some(found.config))
        .collect();
    let pinned = pins.iter().filter_map(|(config, pin)| match pin {
        Pin::Version(object) => Some(ConfigRef::new(config.kind, object.as_str())),
        Pin::Live => None,
    });
    let pod = pod.name_any();
    pinned.filter(|version| named.contains(version)).map(|version| Waiting { pod: pod.clone(), version }).collect()
}

async fn exists(cluster: &Cluster, version: &ConfigRef) -> Seen<bool> {
    let found = match version.kind {
        ConfigKind::ConfigMap => {
            cluster.api::<ConfigMap>().get_metadata_opt(&version.name).await.map(|found| found.is_some())
        }
        ConfigKind::Secret => {
            cluster.api::<Secret>().get_metadata_opt(&version.name).await.map(|found| found.is_some())
        }
    };
    found
        .map_err(|error| Unseen::new(error, format!("get {}s in namespace {}", version.kind.word(), cluster.namespace)))
}

async fn configs(cluster: &Cluster) -> Seen<Vec<VersionedConfig>> {
    let found = cluster.api::<VersionedConfig>().list(&ListParams::default()).await;
    let right = || format!("list versionedconfigs in namespace {}", cluster.namespace);
    found.map(|found| found.items).map_err(|error| Unseen::new(error, right()))
}

/// The version of the API server, and its clock.
async fn server(cluster: &Cluster) -> (Seen<String>, Option<Timestamp>) {
    let version = cluster.client.apiserver_version().await;
    let version = version.map(|version| version.git_version).map_err(|error| match &error {
        kube::Error::Api(status) if status.code == 403 => Unseen::new(error, "get /version"),
        _ => Unseen::Failed(cluster.explain(error, || "ask the API server".to_owned()).to_string()),
    });
    let Ok(request) = Request::get("/version").body(Body::empty()) else { return (version, None) };
    let date = match cluster.client.send(request).await {
        Ok(answer) => answer
            .headers()
            .get(DATE)
            .and_then(|date| date.to_str().ok())
            .and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date.replace("GMT", "+0000")).ok()),
        Err(_) => None,
    };
    (version, date)
}

async fn kinds(cluster: &Cluster) -> Seen<BTreeSet<String>> {
    match cluster.client.list_api_group_resources("lockstep.dev/v1alpha1").await {
        Ok(found) => Ok(found.resources.into_iter().map(|resource| resource.kind).collect()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        Err(error) => Err(Unseen::new(error, "get /apis/lockstep.dev/v1alpha1")),
    }
}

async fn operators(cluster: &Cluster) -> Seen<Vec<Operator>> {
    let labelled = ListParams::default().labels("app.kubernetes.io/name=lockstep");
    let list = async |api: Api<Deployment>| {
        let found = api.list(&labelled).await.map_err(|error| Unseen::new(error, "list deployments"))?;
        Ok(found.items.iter().filter_map(operator).collect())
    };
    match list(Api::all(cluster.client.clone())).await {
        // Not everyone may look everywhere: then it is looked for where we are.
        Err(Unseen::Forbidden(_)) => seen_from_here(list(cluster.api()).await),
        found => found,
    }
}

/// Who may look into one namespace only knows of no operator that there is none elsewhere.
fn seen_from_here(found: Seen<Vec<Operator>>) -> Seen<Vec<Operator>> {
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Err(Unseen::Failed(error)) => Err(Unseen::Failed(error)),
        _ => Err(Unseen::Forbidden("list deployments in all namespaces".to_owned())),
    }
}

fn operator(deployment: &Deployment) -> Option<Operator> {
    let spec = deployment.spec.as_ref()?;
    let container = spec.template.spec.as_ref()?.containers.iter().find(|container| container.name == "operator")?;
    let arguments = container.args.iter().flatten();
    let mode = arguments.filter_map(|argument| argument.strip_prefix("--admission=")).next_back();
    Some(Operator {
        namespace: deployment.namespace().unwrap_or_default(),
        image: container.image.clone().unwrap_or_default(),
        ready: deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0),
        wanted: spec.replicas.unwrap_or(1),
        mode: mode.unwrap_or("policy").to_owned(),
    })
}

fn leader(lease: Option<Lease>, now: Timestamp) -> Option<Leader> {
    let spec = lease?.spec?;
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty())?;
    Some(Leader { holder, renewed_seconds_ago: now.duration_since(spec.renew_time?.0).as_secs() })
}

async fn mutating_policies(cluster: &Cluster) -> Seen<BTreeSet<String>> {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicyBinding");
    let resource = ApiResource::from_gvk_with_plural(&kind, "mutatingadmissionpolicybindings");
    let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
    match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        Err(error) => Err(Unseen::new(error, "list mutatingadmissionpolicybindings")),
        Ok(found) => Ok(found.items.iter().map(ResourceExt::name_any).collect()),
    }
}

async fn validating_policies(cluster: &Cluster) -> Seen<BTreeSet<String>> {
    let api: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        Err(error) => Err(Unseen::new(error, "list validatingadmissionpolicies")),
        Ok(found) => Ok(found.items.iter().map(ResourceExt::name_any).collect()),
    }
}

const OPERATOR_CHECK: &str = "operator";
const ADMISSION_CHECK: &str = "admission";
const RIGHTS_CHECK: &str = "rights";
const TABLE_CHECK: &str = "pin table";
const CONFIGS_CHECK: &str = "configs";
/// What is about the caller and the namespace that they chose, and not about the installation.
const ABOUT_THE_CALLER: [&str; 3] = [RIGHTS_CHECK, TABLE_CHECK, CONFIGS_CHECK];
/// Why a config is not ready although nothing moves, and nothing that it says failed: somebody has to do something.
const STUCK: [&str; 3] = ["Refused", "UnknownVersion", "NoVersion"];
/// How many configs are named, and how many pods.
const NAMED: usize = 5;
/// How many versions are looked up that pods wait for.
const MOST_LOOKED_UP: usize = 50;

/// What the caller must be allowed to, for all commands to work.
const RIGHTS: [(&str, &str, &str); 9] = [
    ("list", "lockstep.dev", "versionedconfigs"),
    ("list", "lockstep.dev", "releases"),
    ("get", "lockstep.dev", "pintables"),
    ("get", "", "configmaps"),
    ("get", "", "secrets"),
    ("patch", "", "configmaps"),
    ("patch", "", "secrets"),
    ("patch", "lockstep.dev", "versionedconfigs"),
    ("patch", "lockstep.dev", "releases"),
];

async fn missing_rights(cluster: &Cluster) -> Seen<Vec<String>> {
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let mut missing = Vec::new();
    for (verb, group, resource) in RIGHTS {
        let attributes = ResourceAttributes {
            namespace: Some(cluster.namespace.clone()),
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| Unseen::new(error, "create selfsubjectaccessreviews"))?;
        if !answer.status.is_some_and(|status| status.allowed) {
            missing.push(format!("{verb} {resource}"));
        }
    }
    Ok(missing)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Level {
    Ok,
    /// The caller may not look.
    NotChecked,
    Warn,
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    level: Level,
    about: &'static str,
    says: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    next: String,
}

impl Check {
    fn new(level: Level, about: &'static str, says: impl Into<String>, next: impl Into<String>) -> Self {
        Self { level, about, says: says.into(), next: next.into() }
    }

    fn ok(about: &'static str, says: impl Into<String>) -> Self {
        Self::new(Level::Ok, about, says, "")
    }

    fn unseen(about: &'static str, why: &Unseen) -> Self {
        match why {
            Unseen::Forbidden(right) => {
                let says = format!("not checked: you may not {right}");
                Self::new(Level::NotChecked, about, says, "ask an administrator to run lockstep doctor")
            }
            Unseen::Failed(error) => Self::new(Level::Warn, about, format!("cannot be seen: {error}"), "try it again"),
        }
    }
}

fn diagnose(facts: &Facts) -> Vec<Check> {
    if facts.kinds.as_ref().is_ok_and(|found| missing(&KINDS, found).len() == KINDS.len()) {
        let kinds = Check::new(Level::Fail, "kinds", "none of Lockstep's kinds is known", NOT_INSTALLED);
        return vec![server_check(facts), kinds];
    }
    let mut checks = vec![server_check(facts), kinds_check(facts), operator_check(facts), leader_check(facts)];
    checks.extend(admission_check(facts));
    checks.extend([guard_check(facts), rights_check(facts), table_check(facts)]);
    checks.extend(configs_check(facts));
    checks.push(clock_check(facts));
    checks
}

fn server_check(facts: &Facts) -> Check {
    match &facts.server {
        Err(why) => Check::unseen("cluster", why),
        Ok(version) => Check::ok("cluster", format!("Kubernetes {version} at {}", facts.address)),
    }
}

fn kinds_check(facts: &Facts) -> Check {
    let about = "kinds";
    let missing = match &facts.kinds {
        Ok(found) => missing(&KINDS, found),
        Err(why) => return Check::unseen(about, why),
    };
    if missing.is_empty() {
        return Check::ok(about, KINDS.join(", "));
    }
    let says = format!("missing: {}", missing.join(", "));
    Check::new(Level::Fail, about, says, "upgrade the chart: helm upgrade lockstep charts/lockstep")
}

fn operator_check(facts: &Facts) -> Check {
    let about = OPERATOR_CHECK;
    let operators = match &facts.operators {
        Ok(operators) => operators,
        Err(why) => return Check::unseen(about, why),
    };
    let Some(Operator { namespace, image, ready, wanted, .. }) = operators.first() else {
        return Check::new(Level::Fail, about, "no Deployment of it was found", NOT_INSTALLED);
    };
    let says = format!("{ready} of {wanted} ready in namespace {namespace} ({image})");
    let logs = format!("kubectl -n {namespace} logs deployment/lockstep");
    match (*ready, *wanted) {
        _ if operators.len() > 1 => {
            let says = format!("{} installations were found", operators.len());
            Check::new(Level::Warn, about, says, "two of them in one namespace would work against each other: keep one")
        }
        (0, 0) => {
            let next = format!(
                "pods keep their versions, but nothing is released: kubectl -n {namespace} scale deployment/lockstep --replicas=2"
            );
            Check::new(Level::Fail, about, says, next)
        }
        (0, _) => {
            Check::new(Level::Fail, about, says, format!("pods keep their versions, but nothing is released: {logs}"))
        }
        (ready, wanted) if ready < wanted => Check::new(Level::Warn, about, says, logs),
        _ => Check::ok(about, says),
    }
}

fn leader_check(facts: &Facts) -> Check {
    let about = "leader";
    match &facts.lease {
        Err(why) => Check::unseen(about, why),
        Ok(None) => match &facts.operators {
            // Its lease is where the operator is.
            Err(why) => Check::unseen(about, why),
            Ok(_) => {
                Check::new(Level::Fail, about, "nobody leads", "is the operator running? It takes the lease `lockstep`")
            }
        },
        Ok(Some(Leader { holder, renewed_seconds_ago })) if *renewed_seconds_ago > LEASE_LIMIT_SECONDS => {
            let says = format!("{holder} led, and was last heard of {renewed_seconds_ago} s ago");
            Check::new(Level::Fail, about, says, "is the operator running, and does it reach the API server?")
        }
        Ok(Some(Leader { holder, .. })) => Check::ok(about, holder),
    }
}

/// None without an operator: there is nothing that could be in any mode.
fn admission_check(facts: &Facts) -> Option<Check> {
    match &facts.operators {
        Err(why) => Some(Check::unseen(ADMISSION_CHECK, why)),
        Ok(found) => found.first().map(|operator| mode_check(facts, &operator.mode)),
    }
}

fn mode_check(facts: &Facts, mode: &str) -> Check {
    let about = ADMISSION_CHECK;
    let repair = "upgrade the chart again: helm upgrade lockstep charts/lockstep";
    match mode {
        "webhook" => match &facts.webhook {
            Err(why) => Check::unseen(about, why),
            Ok(None) => Check::new(Level::Fail, about, "mode webhook, but no webhook is registered", repair),
            Ok(Some(Webhook { is_trusted: false })) => {
                let next = "the operator writes it when it starts: see its logs";
                Check::new(Level::Fail, about, "mode webhook, but the API server has no certificate to trust", next)
            }
            Ok(Some(_)) => Check::ok(about, "mode webhook: the operator answers the API server"),
        },
        "template" => Check::ok(about, "mode template: the operator writes the names of versions into templates"),
        _ => match &facts.pinning {
            Err(why) => Check::unseen(about, why),
            Ok(found) => {
                let missing = missing(&PINNING_POLICIES, found);
                if missing.is_empty() {
                    return Check::ok(about, "mode policy: the API server pins by itself");
                }
                let says = format!("mode policy, but these policies are missing: {}", missing.join(", "));
                Check::new(Level::Fail, about, says, repair)
            }
        },
    }
}

fn guard_check(facts: &Facts) -> Check {
    let about = "guards";
    match &facts.guarding {
        Err(why) => Check::unseen(about, why),
        Ok(found) => {
            let missing = missing(&GUARDING_POLICIES, found);
            if missing.is_empty() {
                return Check::ok(
                    about,
                    "versions cannot be forged, nor deleted while in use, and no name is given twice",
                );
            }
            let says = format!("missing: {}", missing.join(", "));
            let next =
                "versions can be forged, or deleted by mistake: upgrade the chart again (Kubernetes 1.30 or newer)";
            Check::new(Level::Warn, about, says, next)
        }
    }
}

fn missing<'a>(wanted: &[&'a str], found: &BTreeSet<String>) -> Vec<&'a str> {
    wanted.iter().filter(|name| !found.contains(**name)).copied().collect()
}

fn rights_check(facts: &Facts) -> Check {
    let (about, namespace) = (RIGHTS_CHECK, &facts.namespace);
    match &facts.missing_rights {
        Err(why) => Check::unseen(about, why),
        Ok(missing) if missing.is_empty() => Check::ok(about, format!("yours in namespace {namespace} suffice")),
        Ok(missing) => {
            let is_blind = missing.iter().any(|right| right.ends_with("versionedconfigs") && right.starts_with("list"));
            let level = if is_blind { Level::Fail } else { Level::Warn };
            let says = format!("in namespace {namespace} you may not {}", missing.join(", "));
            Check::new(level, about, says, "commands that need it are refused: ask for a Role, or choose another -n")
        }
    }
}

fn table_check(facts: &Facts) -> Check {
    let (about, namespace) = (TABLE_CHECK, &facts.namespace);
    match &facts.table {
        Err(why) => Check::unseen(about, why),
        Ok(true) => Check::ok(about, format!("there is one in namespace {namespace}")),
        Ok(false) => Check::ok(about, format!("none in namespace {namespace} yet: nothing is versioned there")),
    }
}

/// What is versioned in the namespace, and each config and pod that is stuck. One that failed is `lockstep status`'s to tell.
fn configs_check(facts: &Facts) -> Vec<Check> {
    let (about, namespace) = (CONFIGS_CHECK, &facts.namespace);
    let found = match &facts.configs {
        Err(why) => return vec![Check::unseen(about, why)],
        Ok(found) => found,
    };
    let stuck = |object: &VersionedConfig| {
        let ready = object.status.as_ref()?.condition(ConditionType::Ready)?;
        let is_stuck = ready.status == "False" && STUCK.contains(&ready.reason.as_str());
        is_stuck.then(|| format!("{}: {}", ConfigRef::from(&object.spec.source), harmless(&ready.message)))
    };
    let stuck: Vec<Check> =
        found.iter().filter_map(stuck).map(|says| Check::new(Level::Warn, about, says, "")).collect();
    let pods = match &facts.waiting {
        Err(why) => vec![Check::unseen(about, why)],
        Ok(waiting) => some_of(waiting.iter().map(pod_check).collect(), "kubectl get pods"),
    };
    let is_well = stuck.is_empty() && facts.waiting.as_ref().map_or(true, Vec::is_empty);
    let well = || Check::ok(about, format!("{} versioned in namespace {namespace}, none is stuck", found.len()));
    let configs = if is_well { vec![well()] } else { some_of(stuck, "lockstep status") };
    configs.into_iter().chain(pods).collect()
}

/// The first of them, and the command that shows them all.
fn some_of(mut checks: Vec<Check>, all: &str) -> Vec<Check> {
    let more = checks.len().saturating_sub(NAMED);
    checks.truncate(NAMED);
    checks.extend((more > 0).then(|| Check::new(Level::Warn, CONFIGS_CHECK, format!("and {more} more"), all)));
    checks
}

fn pod_check(Waiting { pod, version }: &Waiting) -> Check {
    let says = format!("Pod {} is not ready: it is pinned to {}, which does not exist", harmless(pod), version.name);
    let pins = names::PINS;
    let next = format!("kubectl delete pod {pod}; if it was made by hand, make it again without the annotation {pins}");
    Check::new(Level::Warn, CONFIGS_CHECK, says, next)
}

fn clock_check(facts: &Facts) -> Check {
    let about = "clock";
    match facts.skew_seconds {
        None => Check::new(Level::Warn, about, "the API server does not tell its time", ""),
        Some(skew) if skew.abs() > SKEW_LIMIT_SECONDS => {
            let word = if skew > 0 { "behind" } else { "ahead of" };
            let says = format!("yours is {} s {word} the API server's", skew.abs());
            Check::new(Level::Warn, about, says, "ages and times that you see are off: set your clock")
        }
        Some(_) => Check::ok(about, "yours and the API server's agree"),
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Diagnosis {
    checks: Vec<Check>,
}

impl View for Diagnosis {
    fn text(&self, _: bool) -> String {
        let line = |Check { level, about, says, next }: &Check| {
            let word = match level {
                Level::Ok => paint("ok  ", GOOD),
                Level::NotChecked => paint("skip", FAINT),
                Level::Warn => paint("warn", MOVING),
                Level::Fail => paint("FAIL", BAD),
            };
            let next =
                if next.is_empty() { String::new() } else { format!("\n                 {}", paint(next, FAINT)) };
            format!("{word}  {about:<9}  {says}{next}\n")
        };
        self.checks.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{held, versioned};
    use crate::output::plain;

    fn well() -> Facts {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        Facts {
            address: "https://10.0.0.1:6443/".into(),
            namespace: "shop".into(),
            server: Ok("v1.36.4".into()),
            skew_seconds: Some(0),
            kinds: Ok(set(&KINDS)),
            operators: Ok(vec![Operator {
                namespace: "lockstep-system".into(),
                image: "lockstep.dev/lockstep:0.1.0".into(),
                ready: 1,
                wanted: 1,
                mode: "policy".into(),
            }]),
            lease: Ok(Some(Leader { holder: "lockstep-abc".into(), renewed_seconds_ago: 2 })),
            pinning: Ok(set(&PINNING_POLICIES)),
            guarding: Ok(set(&GUARDING_POLICIES)),
            webhook: Ok(None),
            missing_rights: Ok(Vec::new()),
            table: Ok(true),
            configs: Ok(vec![versioned("configmap", "app")]),
            waiting: Ok(Vec::new()),
        }
    }

    #[test]
    fn a_pod_waits_for_what_it_is_pinned_to_and_names() {
        let found = |ready: &str, phase: &str, named: &str| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "bare", "annotations": {names::PINS: "configmap/app=app-1,secret/db=live"}},
                "spec": {"containers": [{"name": "app", "envFrom": [{"configMapRef": {"name": named}}]}]},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap();
            needs(&pod)
        };
        let version = ConfigRef::new(ConfigKind::ConfigMap, "app-1");
        assert_eq!(found("False", "Pending", "app-1"), [Waiting { pod: "bare".into(), version }]);
        assert_eq!(found("True", "Running", "app-1"), [], "it runs");
        assert_eq!(found("False", "Failed", "app-1"), [], "it has ended");
        assert_eq!(found("False", "Pending", "app"), [], "nobody brought the version into it");
    }

    #[test]
    fn a_pod_that_waits_for_nothing_is_named() {
        let waits =
            |pod: &str| Waiting { pod: pod.into(), version: ConfigRef::new(ConfigKind::ConfigMap, "app-0123456789") };
        let shown = |waiting: Seen<Vec<Waiting>>| shown(&Facts { waiting, ..well() });
        let bare = shown(Ok(vec![waits("bare")]));
        assert!(bare.contains("Pod bare is not ready: it is pinned to app-0123456789, which does not exist"), "{bare}");
        assert!(bare.contains("kubectl delete pod bare") && !bare.contains("none is stuck"), "{bare}");
        assert!(shown(Ok(vec![waits("web"); 8])).contains("and 3 more"));
        let unseen = shown(Err(Unseen::Forbidden("list pods in namespace shop".into())));
        assert!(unseen.contains("skip  configs    not checked: you may not list pods"), "{unseen}");
        assert!(unseen.contains("none is stuck"), "{unseen}");
    }

    #[test]
    fn what_is_stuck_is_named() {
        let stuck = |reason: &str| {
            let mut object = held();
            let ready = json!({"type": "Ready", "status": "False", "reason": reason, "message": "web has a pin to nothing",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            object.status.as_mut().unwrap().conditions = vec![serde_json::from_value(ready).unwrap()];
            object
        };
        let facts = |reason: &str, count: usize| Facts { configs: Ok(vec![stuck(reason); count]), ..well() };
        assert!(shown(&facts("UnknownVersion", 1)).contains("configmap/app: web has a pin to nothing"));
        assert!(shown(&facts("Refused", 8)).contains("and 3 more"));
        assert!(shown(&facts("Held", 1)).contains("none is stuck"), "what failed is told elsewhere");
        assert_eq!(outcome(&diagnose(&facts("UnknownVersion", 1)), RIGHTS_CHECK), Outcome::Done);
    }

    fn shown(facts: &Facts) -> String {
        plain(&Diagnosis { checks: diagnose(facts) }.text(false))
    }

    #[test]
    fn all_is_well() {
        assert!(diagnose(&well()).iter().all(|check| check.level == Level::Ok));
        insta::assert_snapshot!(shown(&well()));
    }

    #[test]
    fn much_is_wrong() {
        let mut facts = well();
        facts.skew_seconds = Some(-75);
        facts.lease = Ok(Some(Leader { holder: "lockstep-abc".into(), renewed_seconds_ago: 300 }));
        facts.pinning = Ok(["lockstep-pins".to_owned()].into());
        facts.guarding = Ok(BTreeSet::new());
        facts.missing_rights = Ok(vec!["patch releases".into()]);
        facts.table = Err(Unseen::Failed("the API server is shutting down".into()));
        if let Ok(operators) = &mut facts.operators {
            operators[0].ready = 0;
        }
        insta::assert_snapshot!(shown(&facts));
    }

    #[test]
    fn the_webhook_counts_only_in_its_mode() {
        let mut facts = well();
        facts.pinning = Ok(BTreeSet::new());
        if let Ok(operators) = &mut facts.operators {
            operators[0].mode = "webhook".into();
        }
        assert!(shown(&facts).contains("no webhook is registered"));
        facts.webhook = Ok(Some(Webhook { is_trusted: true }));
        assert!(diagnose(&facts).iter().all(|check| check.level == Level::Ok), "{}", shown(&facts));
    }

    #[test]
    fn a_cluster_without_lockstep_says_how_to_install_it() {
        let facts = Facts { kinds: Ok(BTreeSet::new()), ..well() };
        assert!(shown(&facts).contains("helm install"));
        assert_eq!(outcome(&diagnose(&facts), RIGHTS_CHECK), Outcome::Unwell);
    }

    fn forbidden<T>(right: &str) -> Seen<T> {
        Err(Unseen::Forbidden(right.to_owned()))
    }

    /// As somebody sees it who has rights in one namespace.
    fn from_one_namespace() -> Facts {
        Facts {
            operators: seen_from_here(Ok(Vec::new())),
            lease: forbidden("get leases in namespace lockstep-system"),
            pinning: forbidden("list mutatingadmissionpolicybindings"),
            guarding: forbidden("list validatingadmissionpolicies"),
            webhook: forbidden("get mutatingwebhookconfigurations"),
            ..well()
        }
    }

    #[test]
    fn what_one_may_not_look_at_is_not_checked_and_has_not_failed() {
        let facts = from_one_namespace();
        insta::assert_snapshot!(shown(&facts));
        assert_eq!(outcome(&diagnose(&facts), RIGHTS_CHECK), Outcome::Done);
        let blind = Facts { missing_rights: Ok(vec!["list versionedconfigs".into()]), ..facts.clone() };
        assert_eq!(outcome(&diagnose(&blind), RIGHTS_CHECK), Outcome::Unwell, "your own rights do not suffice");
        let unsure = Facts { missing_rights: forbidden("create selfsubjectaccessreviews"), ..facts };
        assert_eq!(outcome(&diagnose(&unsure), RIGHTS_CHECK), Outcome::Unwell, "nothing of it is known");
    }

    #[test]
    fn a_test_of_the_installation_must_see_the_operator() {
        let without_policies = Facts { pinning: forbidden("list"), guarding: forbidden("list"), ..well() };
        assert_eq!(outcome(&diagnose(&without_policies), OPERATOR_CHECK), Outcome::Done);
        assert_eq!(outcome(&diagnose(&from_one_namespace()), OPERATOR_CHECK), Outcome::Unwell);
    }

    #[test]
    fn a_lease_that_is_not_where_it_was_looked_for_may_be_elsewhere() {
        let elsewhere = Facts { lease: Ok(None), ..from_one_namespace() };
        assert_eq!(leader_check(&elsewhere).level, Level::NotChecked);
        assert_eq!(leader_check(&Facts { lease: Ok(None), ..well() }).level, Level::Fail);
    }

    #[test]
    fn an_operator_that_is_seen_from_here_is_looked_at() {
        let here = well().operators;
        assert_eq!(seen_from_here(here.clone()).map(|found| found.len()), here.map(|found| found.len()));
        assert!(matches!(seen_from_here(forbidden("list deployments")), Err(Unseen::Forbidden(_))));
        let failed = Unseen::Failed("timeout".into());
        assert_eq!(seen_from_here(Err(failed.clone())).map(|found| found.len()), Err(failed));
    }
}
