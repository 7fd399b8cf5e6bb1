//! Other ways to install Lockstep, one after the other. Whatever happens, the default installation is back at the end of each: the
//! tests of other files need it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use lockstep_testing::manifests::{versioned_colors, web_deployment};
use lockstep_testing::report::ConfigReport;
use lockstep_testing::{SHORT, Scenario, eventually, holds, scenario};
use serde_json::json;
use tokio::sync::Mutex;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/lockstep");
const DEFINITIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds.yaml");
const BY_POLICIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/lockstep.yaml");
const BY_WEBHOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/lockstep-webhook.yaml");
const OWN_NAMESPACE: &str = "lockstep-system";
const OPERATORS: &str = "app.kubernetes.io/name=lockstep";
const OPERATOR: &str = "system:serviceaccount:lockstep-system:lockstep";

/// There is one installation: one test at a time changes it.
static INSTALLATION: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn with_the_webhook_every_pod_runs_what_it_was_released_with() {
    changing_the_installation("webhook", |stage| async move {
        install(&stage, &["admission.mode=webhook"]).await?;
        ensure!(
            rewriting_policies(&stage).await?.is_empty(),
            "policies are left: {}",
            rewriting_policies(&stage).await?
        );
        expect_mode(&stage, "webhook").await?;
        released_once(&stage, "white", "blue").await?;
        every_pod_runs_what_it_was_released_with(&stage).await
    })
    .await;
}

#[tokio::test]
async fn with_version_names_in_templates_every_pod_runs_what_it_was_released_with() {
    changing_the_installation("template", |stage| async move {
        install(&stage, &["admission.mode=template"]).await?;
        let left = admission(&stage).await?;
        ensure!(left.is_empty(), "policies or webhooks are left: {left}");
        expect_mode(&stage, "template").await?;

        stage.apply(&(versioned_colors("white") + &web_deployment(2))).await?;
        expect(&stage, &["white", "white"]).await?;
        released(&stage, "1.0.0").await?;
        holds("adopting leaves the template plain", Duration::from_secs(3), async || {
            expect_references(&stage, "web-env").await?;
            ensure!(stage.replica_sets().await?.len() == 1, "adopting rolled the workload");
            Ok(())
        })
        .await?;
        change(&stage, "blue", "healthy").await?;
        expect(&stage, &["blue", "blue"]).await?;
        expect_named_versions(&stage).await?;
        every_pod_runs_what_it_was_released_with(&stage).await?;

        // Undone to red: also a plain manifest that is applied again comes back to that, and not to what is current.
        let before = stage.pins("deployment/web").await?;
        stage.apply(&web_deployment(2)).await?;
        eventually("the versions to be put back", SHORT, async || expect_named_versions(&stage).await).await?;
        ensure!(stage.pins("deployment/web").await? == before, "other versions than before were put back");
        expect(&stage, &["red", "red"]).await?;
        change(&stage, "pink", "healthy").await?;
        expect(&stage, &["pink", "pink"]).await
    })
    .await;
}

#[tokio::test]
async fn another_mode_leaves_every_workload_with_its_version() {
    changing_the_installation("modes", |stage| async move {
        released_once(&stage, "white", "blue").await?;
        change(&stage, "green", "healthy").await?;
        expect(&stage, &["green", "green"]).await?;
        released(&stage, "r3").await?;
        // Held at blue, while green is current: nothing but its pins says so.
        stage.kubectl(&["rollout", "undo", "deployment/web"]).await?;
        expect(&stage, &["blue", "blue"]).await?;
        let pins = stage.pins("deployment/web").await?;

        install(&stage, &["admission.mode=template"]).await?;
        eventually("versions in the template", SHORT, async || expect_named_versions(&stage).await).await?;
        ensure!(stage.pins("deployment/web").await? == pins, "the pins changed from {pins}");
        recreate_all_pods(&stage).await?;
        expect(&stage, &["blue", "blue"]).await?;

        install(&stage, &[]).await?;
        recreate_all_pods(&stage).await?;
        expect(&stage, &["blue", "blue"]).await?;
        change(&stage, "red", "healthy").await?;
        expect(&stage, &["red", "red"]).await?;
        expect_references(&stage, "web-env").await
    })
    .await;
}

#[tokio::test]
async fn installed_for_one_namespace_it_has_no_rights_elsewhere_and_does_nothing_there() {
    changing_the_installation("namespaced", |stage| async move {
        let other = stage.elsewhere(&format!("{}-other", stage.namespace));
        stage.kubectl(&["create", "namespace", &other.namespace]).await?;
        let outcome = AssertUnwindSafe(one_namespace(&stage, &other)).catch_unwind().await;
        stage.kubectl(&["delete", "namespace", &other.namespace, "--wait=false"]).await?;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
    .await;
}

async fn one_namespace(stage: &Scenario, other: &Scenario) -> Result<()> {
    install(stage, &[&format!("namespaces={{{}}}", stage.namespace)]).await?;
    let ours = "app.kubernetes.io/instance=lockstep";
    let cluster_wide = stage.kubectl(&["get", "clusterroles,clusterrolebindings", "-l", ours, "-o", "name"]).await?;
    ensure!(cluster_wide.is_empty(), "rights for the whole cluster: {cluster_wide}");
    for (verb, resource) in
        [("list", "secrets"), ("get", "configmaps"), ("create", "configmaps"), ("patch", "deployments.apps")]
    {
        ensure!(operator_may(stage, verb, resource).await?, "it may not {verb} {resource} where it works");
        ensure!(!operator_may(other, verb, resource).await?, "it may {verb} {resource} elsewhere");
    }
    ensure!(!operator_may(stage, "list", "namespaces").await?, "it may list namespaces");

    for place in [other, stage] {
        place.apply(&versioned_colors("white")).await?;
    }
    released(stage, "1.0.0").await?;
    for place in [other, stage] {
        place.apply(&web_deployment(1)).await?;
        expect(place, &["white"]).await?;
        change(place, "blue", "healthy").await?;
    }
    expect(stage, &["blue"]).await?;
    released(stage, "r2").await?;
    holds("nothing happens elsewhere", Duration::from_secs(3), async || {
        let versions = other.versions("configmap/web-env").await?;
        ensure!(versions.is_empty(), "versions elsewhere: {versions:?}");
        let found = other.kubectl(&["get", "versionedconfigs,pintables", "-o", "name"]).await?;
        ensure!(found.is_empty(), "objects elsewhere: {found}");
        let config = other.api::<ConfigMap>().get("web-env").await?;
        let stamped = config.annotations().get("lockstep.dev/changed-by");
        ensure!(stamped.is_none(), "a config elsewhere was written to");
        ensure!(other.pins("deployment/web").await?.is_empty(), "a workload elsewhere was pinned");
        ensure!(other.replica_sets().await?.len() == 1, "a workload elsewhere was rolled");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn uninstalling_leaves_all_running_and_installing_again_goes_on_where_it_was() {
    changing_the_installation("uninstall", |stage| async move {
        released_once(&stage, "white", "blue").await?;
        let before = eventually("two pods", SHORT, async || stage.ready_pods("app=web", 2).await).await?;
        let before = uids(&before);
        let versions = stage.versions("configmap/web-env").await?;
        let key = digest_key(&stage).await?;

        uninstall(&stage).await?;
        // Definitions that went would take the versions along, by and by.
        holds("pods and versions are left alone", Duration::from_secs(5), async || {
            ensure!(uids(&stage.ready_pods("app=web", 2).await?) == before, "pods were recreated");
            let left = stage.versions("configmap/web-env").await?;
            ensure!(left == versions, "of {versions:?} there are {left:?}");
            stage.kubectl(&["get", "versionedconfig/configmap-web-env", "pintable/lockstep"]).await.map(drop)
        })
        .await?;

        // Without us a pod that is made reads the config as it is, whatever its template is pinned to.
        change(&stage, "green", "healthy").await?;
        let pod = stage.pods("app=web").await?.pop().context("no pods")?.name_any();
        stage.api::<Pod>().delete(&pod, &DeleteParams::default()).await?;
        eventually("one pod with the live config", SHORT, async || {
            stage.ready_pods("app=web", 2).await?;
            let seen = stage.seen("app=web", |report| report.loaded.env.get("COLOR").cloned()).await?;
            let mut colors: Vec<&String> = seen.values().collect();
            colors.sort_unstable();
            ensure!(colors == ["blue", "green"], "the pods see {seen:?}");
            Ok(())
        })
        .await?;

        install(&stage, &[]).await?;
        ensure!(digest_key(&stage).await? == key, "Secrets would all get new versions: the digest key is another one");
        released(&stage, "r3").await?;
        expect(&stage, &["green", "green"]).await?;
        stage.kubectl(&["rollout", "undo", "deployment/web"]).await?;
        expect(&stage, &["blue", "blue"]).await
    })
    .await;
}

#[tokio::test]
async fn an_upgrade_and_a_rollback_of_the_chart_leave_all_running_and_go_on_where_it_was() {
    changing_the_installation("upgrade", |stage| async move {
        let older = older_chart()?;
        install_chart(&stage, &older, &[]).await?;
        expect_newer_definitions(&stage, false).await?;
        released_once(&stage, "white", "blue").await?;
        // A release is under way meanwhile.
        change(&stage, "green", "never-ready").await?;
        expect(&stage, &["blue", "blue", "green"]).await?;
        let before = uids(&stage.pods("app=web").await?);
        let operators = uids(&expect_operators(&stage).await?);

        install(&stage, &[]).await?;
        expect_newer_definitions(&stage, true).await?;
        let now = uids(&expect_operators(&stage).await?);
        ensure!(!now.iter().any(|uid| operators.contains(uid)), "the operators are still those of the older chart");
        leaves_alone(&stage, &before).await?;
        expect_history(&stage, &["1.0.0", "r2", "r3"]).await?;
        change(&stage, "red", "healthy").await?;
        expect(&stage, &["red", "red"]).await?;
        released(&stage, "r4").await?;

        let before = uids(&stage.pods("app=web").await?);
        stage.elsewhere(OWN_NAMESPACE).helm(&["rollback", "lockstep", "--wait"]).await?;
        expect_operators(&stage).await?;
        expect_newer_definitions(&stage, false).await?;
        leaves_alone(&stage, &before).await?;
        expect_history(&stage, &["1.0.0", "r2", "r3", "r4"]).await?;
        change(&stage, "pink", "healthy").await?;
        expect(&stage, &["pink", "pink"]).await
    })
    .await;
}

/// A copy of the chart as it may have been once: a definition knows less, and the operator is started in another way.
fn older_chart() -> Result<String> {
    let older = Path::new(env!("CARGO_TARGET_TMPDIR")).join("older-chart");
    if older.exists() {
        fs::remove_dir_all(&older)?;
    }
    copy(Path::new(CHART), &older)?;
    edit(&older.join("Chart.yaml"), "\nversion: ", "\nversion: 0.0.1-before-")?;
    edit(&older.join("values.yaml"), "logLevel: info", "logLevel: debug")?;
    let column = "    - jsonPath: .status.held.version\n      name: Held\n      type: string\n";
    edit(&older.join("files/crds/versionedconfigs.yaml"), column, "")?;
    Ok(older.display().to_string())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (entry, target) = (entry?.path(), to);
        let target = target.join(entry.file_name().context("an entry without a name")?);
        if entry.is_dir() { copy(&entry, &target)? } else { fs::copy(&entry, &target).map(drop)? }
    }
    Ok(())
}

fn edit(file: &Path, old: &str, new: &str) -> Result<()> {
    let text = fs::read_to_string(file)?;
    ensure!(text.contains(old), "there is no {old:?} in {}", file.display());
    fs::write(file, text.replace(old, new))?;
    Ok(())
}

/// Whether the definitions are those of the present chart.
async fn expect_newer_definitions(stage: &Scenario, is_newer: bool) -> Result<()> {
    let path = "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}";
    let columns = stage.kubectl(&["get", "crd", "versionedconfigs.lockstep.dev", "-o", path]).await?;
    ensure!(columns.split(' ').any(|name| name == "Held") == is_newer, "the columns are {columns}");
    Ok(())
}

async fn leaves_alone(stage: &Scenario, pods: &[String]) -> Result<()> {
    holds("pods are left alone", Duration::from_secs(3), async || {
        ensure!(uids(&stage.pods("app=web").await?) == pods, "pods were recreated");
        Ok(())
    })
    .await
}

async fn expect_history(stage: &Scenario, names: &[&str]) -> Result<()> {
    let versions = stage.versions("configmap/web-env").await?;
    let mut found: Vec<&str> = versions.values().map(String::as_str).collect();
    found.sort_unstable();
    ensure!(found == names, "the versions are {found:?}");
    Ok(())
}

#[tokio::test]
async fn installed_with_plain_manifests_it_works_and_goes_without_a_trace_in_workloads() {
    changing_the_installation("manifests", |stage| async move {
        uninstall(&stage).await?;
        let apply = ["apply", "--server-side", "-f", DEFINITIONS, "-f"];
        let own = stage.elsewhere(OWN_NAMESPACE);
        own.kubectl(&[&apply[..], &[BY_WEBHOOK, "--dry-run=server"]].concat()).await?;
        own.kubectl(&[&apply[..], &[BY_POLICIES]].concat()).await?;
        let outcome = AssertUnwindSafe(plain_manifests(&stage)).catch_unwind().await;
        own.kubectl(&["delete", "--ignore-not-found", "-f", BY_POLICIES]).await?;
        // What kubectl applied is Helm's alone again: it could not take anything away otherwise.
        own.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &bare_definitions()).await?;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
    .await;
}

async fn plain_manifests(stage: &Scenario) -> Result<()> {
    expect_operators(stage).await?;
    expect_rewriting(stage, true).await?;
    expect_mode(stage, "policy").await?;
    released_once(stage, "white", "blue").await?;
    let before = uids(&eventually("two pods", SHORT, async || stage.ready_pods("app=web", 2).await).await?);
    let versions = stage.versions("configmap/web-env").await?;

    stage.elsewhere(OWN_NAMESPACE).kubectl(&["delete", "-f", BY_POLICIES]).await?;
    expect_nothing_left(stage).await?;
    leaves_alone(stage, &before).await?;
    let left = stage.versions("configmap/web-env").await?;
    ensure!(left == versions, "of {versions:?} there are {left:?}");
    stage.kubectl(&["get", "versionedconfig/configmap-web-env", "pintable/lockstep"]).await.map(drop)
}

/// The definitions without content: applied, they say that one wants nothing of them.
fn bare_definitions() -> String {
    let bare = |kind: &str| {
        format!(
            "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: {kind}.lockstep.dev\n"
        )
    };
    ["versionedconfigs", "pintables", "releases", "releasepolicies"].map(bare).concat()
}

#[tokio::test]
async fn helm_test_says_whether_the_installation_is_well() {
    changing_the_installation("helm-test", |stage| async move {
        let own = stage.elsewhere(OWN_NAMESPACE);
        let told = own.helm(&["test", "lockstep", "--logs"]).await?;
        for check in ["ok    kinds", "ok    operator   2 of 2 ready", "ok    leader", "ok    admission", "ok    guards"]
        {
            ensure!(told.contains(check), "there is no `{check}` in\n{told}");
        }
        ensure!(!told.contains("warn"), "there are warnings:\n{told}");
        let left = own.kubectl(&["get", "pods", "-l", "app.kubernetes.io/name=lockstep-test", "-o", "name"]).await?;
        ensure!(left.is_empty(), "the test has left {left}");

        own.kubectl(&["delete", "mutatingadmissionpolicybinding", "lockstep-table"]).await?;
        let told = own
            .helm(&["test", "lockstep", "--logs"])
            .await
            .err()
            .context("the test does not see that a policy is away")?;
        let told = told.to_string();
        ensure!(told.contains("these policies are missing: lockstep-table"), "the test says:\n{told}");
        own.kubectl(&["delete", "pod", "lockstep-test"]).await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn what_people_may_do_with_releases_follows_from_what_they_may_do_with_workloads() {
    changing_the_installation("people", |stage| async move {
        for (user, role) in [("viewer", "view"), ("editor", "edit")] {
            let (role, subject) = (format!("--clusterrole={role}"), format!("--user={user}"));
            stage.kubectl(&["create", "rolebinding", user, &role, &subject]).await?;
        }
        let expected = [
            ("viewer", "list", "releases.lockstep.dev", true),
            ("viewer", "patch", "releases.lockstep.dev", false),
            ("editor", "patch", "releases.lockstep.dev", true),
            ("editor", "create", "releasepolicies.lockstep.dev", true),
            ("editor", "patch", "pintables.lockstep.dev", false),
        ];
        // Kubernetes gathers the rights of its roles a moment after ours are there.
        eventually("the rights of people", SHORT, async || {
            for (user, verb, resource, wanted) in expected {
                let may = may(&stage, user, verb, resource).await?;
                ensure!(may == wanted, "whether {user} may {verb} {resource}: {may}");
            }
            Ok(())
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn it_runs_where_pod_security_is_restricted() {
    changing_the_installation("restricted", |stage| async move {
        let own = stage.elsewhere(OWN_NAMESPACE);
        let level = "pod-security.kubernetes.io/enforce=restricted";
        own.kubectl(&["label", "namespace", OWN_NAMESPACE, "--overwrite", level]).await?;
        let refusal = own.kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], PROBE).await;
        let refusal = refusal.err().context("a pod without any restriction is let in")?.to_string();
        ensure!(refusal.contains("violates PodSecurity"), "a pod is refused for another reason: {refusal}");
        // In the mode in which most is asked of it. The pods are new ones.
        install(&stage, &["admission.mode=webhook", "configWebhook.enabled=true"]).await?;
        expect_mode(&stage, "webhook").await
    })
    .await;
}

#[tokio::test]
async fn dashboard_and_alerts_use_metrics_that_the_operator_has() {
    changing_the_installation("monitoring", |stage| async move {
        stage.apply(PROMETHEUS_KINDS).await?;
        let outcome = AssertUnwindSafe(monitoring(&stage)).catch_unwind().await;
        // Helm could not remove objects of kinds that are not known any more.
        install(&stage, &[]).await?;
        stage.kubectl_with_input(&["delete", "--wait=false", "-f", "-"], PROMETHEUS_KINDS).await?;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
    .await;
}

async fn monitoring(stage: &Scenario) -> Result<()> {
    for kind in ["servicemonitors", "prometheusrules"] {
        let kind = format!("crd/{kind}.monitoring.coreos.com");
        stage.kubectl(&["wait", "--for=condition=Established", &kind]).await?;
    }
    install(stage, &["serviceMonitor.enabled=true", "alerts.enabled=true", "dashboard.enabled=true"]).await?;
    let own = stage.elsewhere(OWN_NAMESPACE);
    let shown =
        own.kubectl(&["get", "configmaps", "-l", "grafana_dashboard=1", "-o", "jsonpath={.items[*].data}"]).await?;
    let alerts = own.kubectl(&["get", "prometheusrule", "lockstep", "-o", "jsonpath={.spec}"]).await?;
    let exposed = exposed_metrics(&own).await?;
    for (what, text, least) in [("dashboard", &shown, 12), ("alerts", &alerts, 6)] {
        let used = metrics_in(text);
        ensure!(used.len() >= least, "the {what} uses only {used:?}");
        let unknown: Vec<_> = used.difference(&exposed).collect();
        ensure!(unknown.is_empty(), "the {what} uses {unknown:?}, which the operator does not tell: {exposed:?}");
    }

    // The ServiceMonitor finds the Service, and the Service the operators.
    let path = "jsonpath={.spec.selector.matchLabels}";
    let labels = own.kubectl(&["get", "servicemonitor", "lockstep", "-o", path]).await?;
    let labels: BTreeMap<String, String> = serde_json::from_str(&labels)?;
    let selector: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let found = own.kubectl(&["get", "services", "-l", &selector.join(","), "-o", "name"]).await?;
    ensure!(found.trim() == "service/lockstep-metrics", "it selects {found:?}");
    let slices = ["get", "endpointslices", "-l", "kubernetes.io/service-name=lockstep-metrics"];
    // An operator that is going still has its address there for a moment.
    eventually("the addresses of both operators", SHORT, async || {
        let addresses =
            own.kubectl(&[&slices[..], &["-o", "jsonpath={.items[*].endpoints[*].addresses[0]}"]].concat()).await?;
        ensure!(addresses.split(' ').count() == 2, "the Service has {addresses:?}");
        Ok(())
    })
    .await
}

/// The names of all series that an operator tells.
async fn exposed_metrics(own: &Scenario) -> Result<BTreeSet<String>> {
    let pod = own.pods(OPERATORS).await?.pop().context("no operator")?.name_any();
    let text = own.ask_text(&pod, "metrics").await?;
    let series = text.lines().filter(|line| !line.starts_with('#'));
    Ok(series.map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned()).collect())
}

/// The names of our metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("lockstep_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_documented_command_goes_back_to_plain_references() {
    changing_the_installation("plain-again", |stage| async move {
        released_once(&stage, "white", "blue").await?;
        uninstall(&stage).await?;
        let remove = r#"[{"op": "remove", "path": "/spec/template/metadata/annotations/lockstep.dev~1pins"}]"#;
        stage.kubectl(&["patch", "deployment", "web", "--type=json", "-p", remove]).await?;
        stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"]).await?;
        ensure!(stage.pins("deployment/web").await?.is_empty(), "pins are left");
        let pods = eventually("two pods", SHORT, async || stage.ready_pods("app=web", 2).await).await?;
        for pod in pods {
            let mounted = format!("{:?}", pod.spec.and_then(|spec| spec.volumes));
            ensure!(mounted.contains("\"web-files\""), "a pod does not mount the plain config: {mounted}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_kind_by_configuration_is_a_consumer_like_any_other() {
    changing_the_installation("custom-kind", |stage| async move {
        stage.apply(FLEETS).await?;
        let outcome = AssertUnwindSafe(custom_kind(&stage)).catch_unwind().await;
        stage.kubectl(&["delete", "customresourcedefinition", "fleets.e2e.lockstep.dev", "--wait=false"]).await?;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
    .await;
}

async fn custom_kind(stage: &Scenario) -> Result<()> {
    stage.kubectl(&["wait", "--for=condition=Established", "customresourcedefinition/fleets.e2e.lockstep.dev"]).await?;
    let kind = ["group=e2e.lockstep.dev", "version=v1", "kind=Fleet", "resource=fleets", "template=spec.boat.template"];
    let values: Vec<String> = kind.iter().map(|field| format!("kinds[0].{field}")).collect();
    install(stage, &values.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    stage.apply(&versioned_colors("white")).await?;
    released(stage, "1.0.0").await?;
    eventually("the policy of the new kind", SHORT, async || {
        let admitted =
            stage.kubectl_with_input(&["create", "--dry-run=server", "-o", "json", "-f", "-"], FLEET).await?;
        ensure!(admitted.contains("lockstep.dev/pins"), "it would not be pinned");
        Ok(())
    })
    .await?;
    stage.apply(FLEET).await?;
    expect_fleet(stage, "1.0.0").await?;
    change(stage, "blue", "healthy").await?;
    eventually("the fleet to be pinned to the new version", SHORT, async || expect_fleet(stage, "r2").await).await?;
    released(stage, "r2").await?;
    let consumers = stage
        .kubectl(&["get", "versionedconfig", "configmap-web-env", "-o", "jsonpath={.status.consumers[*].kind}"])
        .await?;
    ensure!(consumers == "Fleet", "the consumers are {consumers:?}");

    // What its controller makes of the template runs that version.
    let pins = fleet_pins(stage).await?;
    let pod = FLEET_POD.replace("PINS", &pins).replace("IMAGE", &lockstep_testing::manifests::testapp_image());
    stage.apply(&pod).await?;
    eventually("the pod to see the new config", SHORT, async || {
        let seen = stage.seen("app=fleet", |report| report.loaded.env.get("COLOR").cloned()).await?;
        ensure!(seen.len() == 1 && seen.values().all(|color| color == "blue"), "the pod sees {seen:?}");
        Ok(())
    })
    .await
}

async fn fleet_pins(stage: &Scenario) -> Result<String> {
    let path = r"jsonpath={.spec.boat.template.metadata.annotations.lockstep\.dev/pins}";
    stage.kubectl(&["get", "fleet", "web", "-o", path]).await
}

async fn expect_fleet(stage: &Scenario, version: &str) -> Result<()> {
    let versions = stage.versions("configmap/web-env").await?;
    let (object, _) = versions.iter().find(|(_, name)| *name == version).context("there is no such version")?;
    let pins = fleet_pins(stage).await?;
    ensure!(pins == format!("configmap/web-env={object}"), "the fleet is pinned to {pins:?}");
    Ok(())
}

/// Runs a test that changes the installation, alone, and brings the default back.
async fn changing_the_installation<F>(name: &str, story: impl FnOnce(Scenario) -> F)
where
    F: Future<Output = Result<()>>,
{
    let _alone = INSTALLATION.lock().await;
    scenario(&format!("install-{name}"), |stage| async move {
        let outcome = AssertUnwindSafe(story(stage.clone())).catch_unwind().await;
        let restored = install(&stage, &[]).await.context("the default installation is not back");
        outcome.unwrap_or_else(|panic| resume_unwind(panic)).and(restored)
    })
    .await;
}

/// Installs or changes the installation, with these values and otherwise the default ones.
async fn install(stage: &Scenario, values: &[&str]) -> Result<()> {
    install_chart(stage, CHART, values).await
}

async fn install_chart(stage: &Scenario, chart: &str, values: &[&str]) -> Result<()> {
    let set = values.iter().flat_map(|value| ["--set", value]);
    let upgrade = ["upgrade", "--install", "lockstep", chart, "--reset-values", "--create-namespace", "--wait"];
    let arguments: Vec<&str> = upgrade.into_iter().chain(set).collect();
    stage.elsewhere(OWN_NAMESPACE).helm(&arguments).await?;
    expect_operators(stage).await?;
    expect_rewriting(stage, !values.contains(&"admission.mode=template")).await
}

/// As many operators as there should be, and none besides. Ready are also those that go: their successors must be alone.
async fn expect_operators(stage: &Scenario) -> Result<Vec<Pod>> {
    let own = stage.elsewhere(OWN_NAMESPACE);
    let replicas = own.kubectl(&["get", "deployment", "lockstep", "-o", "jsonpath={.spec.replicas}"]).await?.parse()?;
    eventually(&format!("{replicas} operators"), SHORT, async || own.ready_pods(OPERATORS, replicas).await).await
}

/// The API server takes up policies and webhooks, and lets go of them, a moment after they were written.
async fn expect_rewriting(stage: &Scenario, is_on: bool) -> Result<()> {
    eventually(&format!("pods to be rewritten: {is_on}"), SHORT, async || {
        let path = "jsonpath={.spec.volumes[0].configMap.name}";
        let named = stage.kubectl_with_input(&["create", "--dry-run=server", "-o", path, "-f", "-"], PROBE).await?;
        ensure!((named == "probe-1") == is_on, "a pod would mount {named}");
        Ok(())
    })
    .await
}

async fn uninstall(stage: &Scenario) -> Result<()> {
    let own = stage.elsewhere(OWN_NAMESPACE);
    own.helm(&["uninstall", "lockstep", "--wait"]).await?;
    expect_nothing_left(stage).await
}

async fn expect_nothing_left(stage: &Scenario) -> Result<()> {
    let own = stage.elsewhere(OWN_NAMESPACE);
    eventually("no operator", SHORT, async || own.ready_pods(OPERATORS, 0).await.map(drop)).await?;
    let left = admission(stage).await?;
    ensure!(left.is_empty(), "policies or webhooks are left: {left}");
    expect_rewriting(stage, false).await
}

async fn rewriting_policies(stage: &Scenario) -> Result<String> {
    let names = ["lockstep-pins", "lockstep-table", "lockstep-workloads", "lockstep-cronjobs"];
    let mut arguments = vec!["get", "mutatingadmissionpolicies", "--ignore-not-found", "-o", "name"];
    arguments.extend(names);
    stage.kubectl(&arguments).await
}

async fn admission(stage: &Scenario) -> Result<String> {
    let policies = "mutatingadmissionpolicies,mutatingadmissionpolicybindings";
    let kinds = format!("{policies},mutatingwebhookconfigurations,validatingwebhookconfigurations");
    stage.kubectl(&["get", &kinds, "-l", "app.kubernetes.io/instance=lockstep", "-o", "name"]).await
}

async fn digest_key(stage: &Scenario) -> Result<String> {
    let own = stage.elsewhere(OWN_NAMESPACE);
    own.kubectl(&["get", "secret", "lockstep-digest-key", "-o", "jsonpath={.metadata.uid}"]).await
}

async fn operator_may(stage: &Scenario, verb: &str, resource: &str) -> Result<bool> {
    may(stage, OPERATOR, verb, resource).await
}

async fn may(stage: &Scenario, user: &str, verb: &str, resource: &str) -> Result<bool> {
    match stage.kubectl(&["auth", "can-i", verb, resource, "--as", user]).await {
        Ok(answer) => Ok(answer.trim() == "yes"),
        // No is a failure to kubectl.
        Err(error) if error.to_string().trim_end().ends_with("no") => Ok(false),
        Err(error) => Err(error),
    }
}

async fn expect_mode(stage: &Scenario, mode: &str) -> Result<()> {
    let own = stage.elsewhere(OWN_NAMESPACE);
    let pod = own.pods(OPERATORS).await?.pop().context("no operator")?.name_any();
    let metrics = own.ask_text(&pod, "metrics").await?;
    let expected = format!("lockstep_admission_mode{{mode={mode:?}}} 1");
    ensure!(metrics.contains(&expected), "there is no {expected} in\n{metrics}");
    Ok(())
}

/// Two pods that have been through one change: their template has pins in every mode.
async fn released_once(stage: &Scenario, first: &str, second: &str) -> Result<()> {
    stage.apply(&versioned_colors(first)).await?;
    released(stage, "1.0.0").await?;
    stage.apply(&web_deployment(2)).await?;
    expect(stage, &[first, first]).await?;
    change(stage, second, "healthy").await?;
    expect(stage, &[second, second]).await?;
    released(stage, "r2").await
}

/// Starts with two blue pods and ends with two red ones, while yellow is current.
async fn every_pod_runs_what_it_was_released_with(stage: &Scenario) -> Result<()> {
    change(stage, "green", "never-ready").await?;
    expect(stage, &["blue", "blue", "green"]).await?;
    recreate_all_pods(stage).await?;
    expect(stage, &["blue", "blue", "green"]).await?;
    change(stage, "red", "healthy").await?;
    expect(stage, &["red", "red"]).await?;
    change(stage, "yellow", "healthy").await?;
    expect(stage, &["yellow", "yellow"]).await?;
    released(stage, "r5").await?;
    recreate_all_pods(stage).await?;
    expect(stage, &["yellow", "yellow"]).await?;
    stage.kubectl(&["rollout", "undo", "deployment/web"]).await?;
    expect(stage, &["red", "red"]).await?;
    recreate_all_pods(stage).await?;
    expect(stage, &["red", "red"]).await
}

/// Both configs at the same moment, so that they make one rollout.
async fn change(stage: &Scenario, color: &str, behavior: &str) -> Result<()> {
    let env = Patch::Merge(json!({"data": {"COLOR": color, "BEHAVIOR": behavior}}));
    let files = Patch::Merge(json!({"data": {"color": color}}));
    let (configs, params) = (stage.api::<ConfigMap>(), PatchParams::default());
    futures::try_join!(configs.patch("web-env", &params, &env), configs.patch("web-files", &params, &files))?;
    Ok(())
}

async fn released(stage: &Scenario, version: &str) -> Result<()> {
    stage.released("configmap/web-env", version).await?;
    stage.released("configmap/web-files", version).await
}

async fn expect(stage: &Scenario, expected: &[&str]) -> Result<()> {
    eventually(&format!("pods that see {expected:?}"), SHORT, async || {
        let seen = stage.seen("app=web", color).await?;
        let mut colors: Vec<&str> = seen.values().map(String::as_str).collect();
        colors.sort_unstable();
        ensure!(colors == expected, "the pods see {seen:?}");
        Ok(())
    })
    .await
}

/// The color, if environment and files agree.
fn color(report: &ConfigReport) -> Option<String> {
    let env = report.loaded.env.get("COLOR")?;
    let file = report.loaded.files.get("/etc/config/color")?;
    Some(if env == file { env.clone() } else { format!("{env} in env, {file} in file") })
}

async fn recreate_all_pods(stage: &Scenario) -> Result<()> {
    let before = stage.pods("app=web").await?;
    for pod in &before {
        stage.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await?;
    }
    let before = uids(&before);
    eventually("all pods to be others", SHORT, async || {
        let now = uids(&stage.pods("app=web").await?);
        ensure!(now.len() == before.len() && !now.iter().any(|uid| before.contains(uid)), "old pods are left");
        Ok(())
    })
    .await
}

fn uids(pods: &[Pod]) -> Vec<String> {
    let mut uids: Vec<String> = pods.iter().filter_map(ResourceExt::uid).collect();
    uids.sort_unstable();
    uids
}

/// The template's reference to `web-env` names this object.
async fn expect_references(stage: &Scenario, object: &str) -> Result<()> {
    let container = &stage.read("deployment/web").await?["spec"]["template"]["spec"]["containers"][0];
    let named = &container["envFrom"][0]["configMapRef"]["name"];
    ensure!(*named == object, "the template names {named}, and not {object}");
    Ok(())
}

/// The template's references name what its pins say.
async fn expect_named_versions(stage: &Scenario) -> Result<()> {
    let pins = stage.pins("deployment/web").await?;
    let pin = pins.split(',').find_map(|pin| pin.strip_prefix("configmap/web-env="));
    expect_references(stage, pin.with_context(|| format!("no pin of web-env in {pins:?}"))?).await
}

/// A kind that nobody knows, with its template at an unusual place.
const FLEETS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: fleets.e2e.lockstep.dev
spec:
  group: e2e.lockstep.dev
  scope: Namespaced
  names: {kind: Fleet, plural: fleets, singular: fleet}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

const FLEET: &str = "
apiVersion: e2e.lockstep.dev/v1
kind: Fleet
metadata:
  name: web
spec:
  boat:
    template:
      spec:
        containers:
        - name: web
          envFrom:
          - configMapRef: {name: web-env}
";

const FLEET_POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: fleet
  labels: {app: fleet}
  annotations: {lockstep.dev/pins: PINS}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: IMAGE
    envFrom:
    - configMapRef: {name: web-env}
";

/// The kinds of the Prometheus Operator, as far as we need them.
const PROMETHEUS_KINDS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: servicemonitors.monitoring.coreos.com
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: ServiceMonitor, plural: servicemonitors, singular: servicemonitor}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: prometheusrules.monitoring.coreos.com
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: PrometheusRule, plural: prometheusrules, singular: prometheusrule}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

/// Only asked about, never made.
const PROBE: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: probe
  annotations: {lockstep.dev/pins: configmap/probe=probe-1}
spec:
  containers:
  - {name: probe, image: probe}
  volumes:
  - name: probe
    configMap: {name: probe}
";
