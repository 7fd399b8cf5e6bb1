//! The cluster's processes: their command lines and configuration files.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::layout::{Layout, NODE_NAME};
use super::{cgroups, network};
use crate::image;
use crate::tools::Tools;

const ETCD: &str = "http://127.0.0.1:2379";
/// As the cluster sees it: the directory is one of its private ones.
const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// One process of the cluster.
#[derive(Debug)]
pub(crate) struct Component {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
}

/// What can start at once; the rest waits for the API server.
pub(crate) fn foundation(layout: &Layout, tools: &Tools) -> Vec<Component> {
    vec![etcd(layout, tools), containerd(layout), apiserver(layout, tools)]
}

pub(crate) fn clients(layout: &Layout, tools: &Tools) -> Vec<Component> {
    vec![controller_manager(layout, tools), scheduler(layout, tools), kubelet(layout, tools), kube_proxy(layout, tools)]
}

/// Turns `name=value` pairs, as flags are written, into arguments.
fn component(name: &'static str, program: PathBuf, flags: &[(&str, &dyn AsRef<std::ffi::OsStr>)]) -> Component {
    let argument = |(flag, value): &(&str, &dyn AsRef<std::ffi::OsStr>)| {
        let mut argument = OsString::from(format!("--{flag}="));
        argument.push(value.as_ref());
        argument
    };
    Component { name, program, arguments: flags.iter().map(argument).collect() }
}

fn etcd(layout: &Layout, tools: &Tools) -> Component {
    let peer = "http://127.0.0.1:2380";
    component(
        "etcd",
        tools.kubernetes("etcd"),
        &[
            ("data-dir", &layout.etcd_data()),
            ("listen-client-urls", &ETCD),
            ("advertise-client-urls", &ETCD),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
            ("initial-cluster", &format!("default={peer}")),
            // The data lives as long as the process: waiting for the disk would gain nothing.
            ("unsafe-no-fsync", &"true"),
        ],
    )
}

fn containerd(layout: &Layout) -> Component {
    component("containerd", "containerd".into(), &[("config", &layout.config("containerd.toml"))])
}

fn apiserver(layout: &Layout, tools: &Tools) -> Component {
    let pki = |file: &str| layout.pki().join(file);
    component(
        "kube-apiserver",
        tools.kubernetes("kube-apiserver"),
        &[
            ("etcd-servers", &ETCD),
            ("secure-port", &"6443"),
            ("advertise-address", &network::NODE.to_string()),
            ("service-cluster-ip-range", &network::SERVICES.to_string()),
            ("allow-privileged", &"true"),
            ("authorization-mode", &"Node,RBAC"),
            ("enable-admission-plugins", &"NodeRestriction"),
            ("client-ca-file", &pki("ca.crt")),
            ("tls-cert-file", &pki("apiserver.crt")),
            ("tls-private-key-file", &pki("apiserver.key")),
            ("kubelet-client-certificate", &pki("apiserver-kubelet.crt")),
            ("kubelet-client-key", &pki("apiserver-kubelet.key")),
            ("kubelet-preferred-address-types", &"InternalIP"),
            ("service-account-issuer", &"https://kubernetes.default.svc"),
            ("service-account-key-file", &pki("service-accounts.pub")),
            ("service-account-signing-key-file", &pki("service-accounts.key")),
            ("requestheader-client-ca-file", &pki("front-proxy-ca.crt")),
            ("requestheader-allowed-names", &"front-proxy-client"),
            ("requestheader-username-headers", &"X-Remote-User"),
            ("requestheader-group-headers", &"X-Remote-Group"),
            ("requestheader-extra-headers-prefix", &"X-Remote-Extra-"),
            ("proxy-client-cert-file", &pki("front-proxy.crt")),
            ("proxy-client-key-file", &pki("front-proxy.key")),
            // Webhooks and aggregated APIs are called on their pods' addresses.
            ("enable-aggregator-routing", &"true"),
            ("audit-policy-file", &layout.config("audit-policy.json")),
            ("audit-log-path", &layout.log("audit")),
            ("audit-log-maxsize", &"200"),
            ("audit-log-maxbackup", &"2"),
        ],
    )
}

fn controller_manager(layout: &Layout, tools: &Tools) -> Component {
    let kubeconfig = layout.kubeconfig_of("controller-manager");
    component(
        "kube-controller-manager",
        tools.kubernetes("kube-controller-manager"),
        &[
            ("kubeconfig", &kubeconfig),
            ("authentication-kubeconfig", &kubeconfig),
            ("authorization-kubeconfig", &kubeconfig),
            ("leader-elect", &"false"),
            ("use-service-account-credentials", &"true"),
            // One machine and no neighbours: its own throttle would only make tests slow.
            ("kube-api-qps", &"500"),
            ("kube-api-burst", &"1000"),
            ("service-account-private-key-file", &layout.pki().join("service-accounts.key")),
            ("root-ca-file", &layout.pki().join("ca.crt")),
            ("cluster-signing-cert-file", &layout.pki().join("ca.crt")),
            ("cluster-signing-key-file", &layout.pki().join("ca.key")),
        ],
    )
}

fn scheduler(layout: &Layout, tools: &Tools) -> Component {
    let kubeconfig = layout.kubeconfig_of("scheduler");
    component(
        "kube-scheduler",
        tools.kubernetes("kube-scheduler"),
        &[
            ("kubeconfig", &kubeconfig),
            ("authentication-kubeconfig", &kubeconfig),
            ("authorization-kubeconfig", &kubeconfig),
            ("leader-elect", &"false"),
        ],
    )
}

fn kubelet(layout: &Layout, tools: &Tools) -> Component {
    component(
        "kubelet",
        tools.kubernetes("kubelet"),
        &[
            ("config", &layout.config("kubelet.json")),
            ("kubeconfig", &layout.kubeconfig_of("kubelet")),
            ("hostname-override", &NODE_NAME),
            ("node-ip", &network::NODE.to_string()),
        ],
    )
}

fn kube_proxy(layout: &Layout, tools: &Tools) -> Component {
    component(
        "kube-proxy",
        tools.kubernetes("kube-proxy"),
        &[("config", &layout.config("kube-proxy.json")), ("hostname-override", &NODE_NAME)],
    )
}

/// Writes the configuration files that the command lines name.
pub(crate) fn write_configuration(layout: &Layout, cni_plugins: &Path) -> Result<()> {
    fs::create_dir_all(layout.config("cni"))?;
    let json = |file: &str, value: &Value| write(&layout.config(file), &format!("{value:#}\n"));
    json("audit-policy.json", &audit_policy())?;
    json("kubelet.json", &kubelet_configuration(layout))?;
    json("kube-proxy.json", &kube_proxy_configuration(layout))?;
    json("cni/lockstep.conflist", &pod_network())?;
    write(&layout.config("containerd.toml"), &containerd_configuration(layout, cni_plugins))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Who did what to which object: enough to prove what was never written to, and free of contents.
fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    })
}

fn kubelet_configuration(layout: &Layout) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"x509": {"clientCAFile": layout.pki().join("ca.crt")}, "anonymous": {"enabled": false}},
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [network::DNS_SERVICE],
        // Names outside of the cluster do not resolve: there is no way out.
        "resolvConf": "",
        "cgroupRoot": cgroups::ROOT,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "enforceNodeAllocatable": ["none"],
        "failSwapOn": false,
        "maxPods": 250,
        "serializeImagePulls": false,
        // The machine is the developer's: its disk may be fuller than a node's would.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
    })
}

fn kube_proxy_configuration(layout: &Layout) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": layout.kubeconfig_of("kube-proxy")},
        "mode": "iptables",
        "clusterCIDR": network::PODS.to_string(),
        // A network namespace cannot change the machine's limits on tracked connections.
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            "udpTimeout": "0s", "udpStreamTimeout": "0s",
        },
    })
}

fn pod_network() -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "lockstep",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": network::PODS.to_string()}]],
                "routes": [{"dst": network::RANGE.to_string()}],
            },
        }],
    })
}

fn containerd_configuration(layout: &Layout, cni_plugins: &Path) -> String {
    let (pause, cni, plugins) = (image::PAUSE, layout.config("cni"), cni_plugins.display());
    let cni = cni.display();
    format!(
        r#"version = 2

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Lowering a score below one's own needs a capability that containers and some machines lack.
  restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugins}"
  conf_dir = "{cni}"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"#
    )
}
