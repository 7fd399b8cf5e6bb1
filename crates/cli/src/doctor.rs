//! `lockstep doctor`: whether all of Lockstep is there and well, and what to do where it is not.

use std::collections::BTreeSet;
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
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::client::Body;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use lockstep_api::PinTable;
use lockstep_core::names;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::cluster::{Cluster, NOT_INSTALLED};
use crate::output::{BAD, FAINT, Format, GOOD, MOVING, View, paint, print, render};

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
const GUARDING_POLICIES: [&str; 2] = ["lockstep-version-names", "lockstep-versions-in-use"];

/// Flags of `lockstep doctor`.
#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// Look at the installation only, and not at what you may do: what `helm test` runs
    #[arg(long)]
    installation: bool,
}

/// All that is looked at; an error where that was not possible.
#[derive(Debug, Clone)]
struct Facts {
    address: String,
    namespace: String,
    server: String,
    /// How far the server's clock is ahead of ours.
    skew_seconds: Option<i64>,
    kinds: BTreeSet<String>,
    operators: Result<Vec<Operator>, String>,
    lease: Result<Option<Leader>, String>,
    pinning: Result<BTreeSet<String>, String>,
    guarding: Result<BTreeSet<String>, String>,
    webhook: Result<Option<Webhook>, String>,
    missing_rights: Result<Vec<String>, String>,
    table: Result<bool, String>,
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
        (Ok(version), date) => diagnose(&gather(cluster, version, date).await),
        // Nothing else can be asked then.
        (Err(error), _) => vec![Check::new(Level::Fail, "cluster", error, "")],
    };
    if flags.installation {
        checks.retain(|check| !ABOUT_THE_CALLER.contains(&check.about));
    }
    let diagnosis = Diagnosis { checks };
    print(&render(&diagnosis, format)?)?;
    let is_unwell = diagnosis.checks.iter().any(|check| check.level == Level::Fail);
    Ok(if is_unwell { Outcome::Unwell } else { Outcome::Done })
}

/// Who leads. After an upgrade it takes the next one a moment, or until the old one's lease has expired.
async fn lease(leases: &Api<Lease>, now: Timestamp, patience: Duration) -> Result<Option<Leader>, String> {
    let start = Instant::now();
    loop {
        let at = SignedDuration::try_from(start.elapsed()).map_or(now, |elapsed| now + elapsed);
        let found = leases.get_opt(names::FIELD_MANAGER).await.map_err(short).map(|lease| leader(lease, at));
        if !matches!(found, Ok(None)) || start.elapsed() >= patience {
            return found;
        }
        sleep(LEADER_POLL).await;
    }
}

async fn gather(cluster: &Cluster, server: String, date: Option<Timestamp>) -> Facts {
    let client = &cluster.client;
    let now = Timestamp::now();
    let skew_seconds = date.map(|date| date.duration_since(now).as_secs());
    let operators = operators(cluster).await;
    let own = operators.as_ref().ok().and_then(|found| found.first()).map(|found| found.namespace.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), own.as_deref().unwrap_or("lockstep-system"));
    let is_ready = operators.as_ref().is_ok_and(|found| found.iter().any(|operator| operator.ready > 0));
    let lease = lease(&leases, date.unwrap_or(now), if is_ready { LEADER_PATIENCE } else { Duration::ZERO }).await;
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let webhook = webhooks.get_opt(names::FIELD_MANAGER).await.map_err(short);
    let table = cluster.api::<PinTable>().get_opt(names::PIN_TABLE).await.map_err(short);
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
    }
}

fn short(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        other => other.to_string(),
    }
}

/// The version of the API server, and its clock.
async fn server(cluster: &Cluster) -> (Result<String, String>, Option<Timestamp>) {
    let version = cluster.client.apiserver_version().await;
    let version = version.map(|version| version.git_version);
    let version = version.map_err(|error| cluster.explain(error, || "ask the API server".to_owned()).to_string());
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

async fn kinds(cluster: &Cluster) -> BTreeSet<String> {
    let found = cluster.client.list_api_group_resources("lockstep.dev/v1alpha1").await;
    found.map(|found| found.resources.into_iter().map(|resource| resource.kind).collect()).unwrap_or_default()
}

async fn operators(cluster: &Cluster) -> Result<Vec<Operator>, String> {
    let api: Api<Deployment> = Api::all(cluster.client.clone());
    let labelled = ListParams::default().labels("app.kubernetes.io/name=lockstep");
    let found = match api.list(&labelled).await {
        // Not everyone may look everywhere: then it is looked for where we are.
        Err(kube::Error::Api(status)) if status.code == 403 => cluster.api::<Deployment>().list(&labelled).await,
        found => found,
    };
    Ok(found.map_err(short)?.items.iter().filter_map(operator).collect())
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

async fn mutating_policies(cluster: &Cluster) -> Result<BTreeSet<String>, String> {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicyBinding");
    let resource = ApiResource::from_gvk_with_plural(&kind, "mutatingadmissionpolicybindings");
    let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
    match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        found => Ok(found.map_err(short)?.items.iter().map(ResourceExt::name_any).collect()),
    }
}

async fn validating_policies(cluster: &Cluster) -> Result<BTreeSet<String>, String> {
    let api: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(BTreeSet::new()),
        found => Ok(found.map_err(short)?.items.iter().map(ResourceExt::name_any).collect()),
    }
}

const RIGHTS_CHECK: &str = "rights";
const TABLE_CHECK: &str = "pin table";
/// What is about the caller and the namespace that they chose, and not about the installation.
const ABOUT_THE_CALLER: [&str; 2] = [RIGHTS_CHECK, TABLE_CHECK];

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

async fn missing_rights(cluster: &Cluster) -> Result<Vec<String>, String> {
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
        let answer = api.create(&PostParams::default(), &review).await.map_err(short)?;
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

    fn unknown(about: &'static str, error: &str) -> Self {
        Self::new(Level::Warn, about, format!("cannot be seen: {error}"), "ask somebody who may")
    }
}

fn diagnose(facts: &Facts) -> Vec<Check> {
    let server = Check::ok("cluster", format!("Kubernetes {} at {}", facts.server, facts.address));
    let missing: Vec<&str> = KINDS.into_iter().filter(|kind| !facts.kinds.contains(*kind)).collect();
    if missing.len() == KINDS.len() {
        return vec![server, Check::new(Level::Fail, "kinds", "none of Lockstep's kinds is known", NOT_INSTALLED)];
    }
    let kinds = if missing.is_empty() {
        Check::ok("kinds", KINDS.join(", "))
    } else {
        let says = format!("missing: {}", missing.join(", "));
        Check::new(Level::Fail, "kinds", says, "upgrade the chart: helm upgrade lockstep charts/lockstep")
    };
    let operator = facts.operators.as_ref().ok().and_then(|found| found.first());
    let mut checks = vec![server, kinds, operator_check(facts), leader_check(facts)];
    checks.extend(operator.map(|operator| admission_check(facts, &operator.mode)));
    checks.extend([guard_check(facts), rights_check(facts), table_check(facts), clock_check(facts)]);
    checks
}

fn operator_check(facts: &Facts) -> Check {
    let about = "operator";
    let operators = match &facts.operators {
        Ok(operators) => operators,
        Err(error) => return Check::unknown(about, error),
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
        Err(error) => Check::unknown(about, error),
        Ok(None) => {
            Check::new(Level::Fail, about, "nobody leads", "is the operator running? It takes the lease `lockstep`")
        }
        Ok(Some(Leader { holder, renewed_seconds_ago })) if *renewed_seconds_ago > LEASE_LIMIT_SECONDS => {
            let says = format!("{holder} led, and was last heard of {renewed_seconds_ago} s ago");
            Check::new(Level::Fail, about, says, "is the operator running, and does it reach the API server?")
        }
        Ok(Some(Leader { holder, .. })) => Check::ok(about, holder),
    }
}

fn admission_check(facts: &Facts, mode: &str) -> Check {
    let about = "admission";
    let repair = "upgrade the chart again: helm upgrade lockstep charts/lockstep";
    match mode {
        "webhook" => match &facts.webhook {
            Err(error) => Check::unknown(about, error),
            Ok(None) => Check::new(Level::Fail, about, "mode webhook, but no webhook is registered", repair),
            Ok(Some(Webhook { is_trusted: false })) => {
                let next = "the operator writes it when it starts: see its logs";
                Check::new(Level::Fail, about, "mode webhook, but the API server has no certificate to trust", next)
            }
            Ok(Some(_)) => Check::ok(about, "mode webhook: the operator answers the API server"),
        },
        "template" => Check::ok(about, "mode template: the operator writes the names of versions into templates"),
        _ => match &facts.pinning {
            Err(error) => Check::unknown(about, error),
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
        Err(error) => Check::unknown(about, error),
        Ok(found) => {
            let missing = missing(&GUARDING_POLICIES, found);
            if missing.is_empty() {
                return Check::ok(about, "versions in use cannot be deleted, names not be given twice");
            }
            let says = format!("missing: {}", missing.join(", "));
            let next = "versions in use can be deleted by mistake: upgrade the chart again (Kubernetes 1.30 or newer)";
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
        Err(error) => Check::unknown(about, error),
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
        Err(error) => {
            Check::new(Level::Warn, about, format!("cannot be read: {error}"), "ask for the right to get pintables")
        }
        Ok(true) => Check::ok(about, format!("there is one in namespace {namespace}")),
        Ok(false) => Check::ok(about, format!("none in namespace {namespace} yet: nothing is versioned there")),
    }
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
    use super::*;
    use crate::output::plain;

    fn well() -> Facts {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        Facts {
            address: "https://10.0.0.1:6443/".into(),
            namespace: "shop".into(),
            server: "v1.36.4".into(),
            skew_seconds: Some(0),
            kinds: set(&KINDS),
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
        }
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
        facts.table = Err("forbidden".into());
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
        let facts = Facts { kinds: BTreeSet::new(), ..well() };
        assert!(shown(&facts).contains("helm install"));
    }
}
