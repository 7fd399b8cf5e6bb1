//! The cluster's keys and certificates, made anew at each start: they are worth nothing outside of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::layout::{Layout, NODE_NAME};
use super::network;

/// Who a client certificate speaks for. RBAC knows these names by Kubernetes' own bootstrap roles.
struct Identity {
    file: &'static str,
    user: String,
    group: &'static str,
}

/// An authority that signs certificates into one directory.
struct Authority<'a> {
    issuer: Issuer<'static, KeyPair>,
    directory: &'a Path,
}

pub(crate) fn create(layout: &Layout) -> Result<()> {
    let directory = layout.pki();
    fs::create_dir_all(&directory)?;
    let cluster = Authority::create("lockstep-cluster", "ca", &directory)?;
    cluster.issue_server("apiserver", &api_server_names())?;
    for identity in identities() {
        cluster.issue_client(&identity)?;
        write_kubeconfig(layout, identity.file)?;
    }
    let front_proxy = Authority::create("lockstep-front-proxy", "front-proxy-ca", &directory)?;
    front_proxy.issue_client(&Identity { file: "front-proxy", user: "front-proxy-client".into(), group: "" })?;
    let service_accounts = KeyPair::generate()?;
    fs::write(directory.join("service-accounts.pub"), service_accounts.public_key_pem())?;
    write_private(&directory.join("service-accounts.key"), &service_accounts.serialize_pem())
}

fn identities() -> [Identity; 6] {
    let identity = |file, user: &str, group| Identity { file, user: user.to_owned(), group };
    [
        identity("admin", "admin", "system:masters"),
        identity("apiserver-kubelet", "apiserver-kubelet", "system:masters"),
        identity("controller-manager", "system:kube-controller-manager", ""),
        identity("scheduler", "system:kube-scheduler", ""),
        identity("kube-proxy", "system:kube-proxy", ""),
        identity("kubelet", &format!("system:node:{NODE_NAME}"), "system:nodes"),
    ]
}

fn api_server_names() -> Vec<String> {
    let service =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
    let addresses = [network::NODE, network::API_SERVICE].map(|address| address.to_string());
    service.map(str::to_owned).into_iter().chain(addresses).chain(["localhost".into(), "127.0.0.1".into()]).collect()
}

impl<'a> Authority<'a> {
    fn create(name: &str, file: &str, directory: &'a Path) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        write_pair(directory, file, &certificate.pem(), &key)?;
        Ok(Self { issuer: Issuer::new(params, key), directory })
    }

    fn issue_server(&self, file: &str, names: &[String]) -> Result<()> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, file);
        self.issue(file, params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn issue_client(&self, identity: &Identity) -> Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, identity.user.as_str());
        if !identity.group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, identity.group);
        }
        self.issue(identity.file, params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(&self, file: &str, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<()> {
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        write_pair(self.directory, file, &certificate.pem(), &key)
    }
}

fn write_pair(directory: &Path, file: &str, certificate: &str, key: &KeyPair) -> Result<()> {
    fs::write(directory.join(format!("{file}.crt")), certificate)?;
    write_private(&directory.join(format!("{file}.key")), &key.serialize_pem())
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}

fn write_kubeconfig(layout: &Layout, identity: &str) -> Result<()> {
    let pki = layout.pki();
    let pki = pki.display();
    let server = network::NODE;
    let text = format!(
        "apiVersion: v1
kind: Config
current-context: lockstep
contexts:
- name: lockstep
  context: {{cluster: lockstep, user: {identity}}}
clusters:
- name: lockstep
  cluster:
    server: https://{server}:6443
    certificate-authority: {pki}/ca.crt
users:
- name: {identity}
  user:
    client-certificate: {pki}/{identity}.crt
    client-key: {pki}/{identity}.key
"
    );
    write_private(&layout.kubeconfig_of(identity), &text)
}
