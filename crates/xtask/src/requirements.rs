//! What the machine must have, checked before anything is started. Each refusal is one sentence with its remedy.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cluster::network;
use crate::command;
use crate::progress::Part;

/// The oldest Go that the pinned modules accept.
const GO_MINOR: u32 = 26;

/// Programs that the cluster runs, and the Debian package that has each.
const PROGRAMS: [(&str, &str); 6] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("unshare", "util-linux"),
];

/// Where distributions put the network plugins.
const CNI_DIRECTORIES: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
const CNI_PLUGINS: [&str; 3] = ["bridge", "host-local", "loopback"];

pub(crate) fn root_user() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the local cluster runs containers and needs root: run it with sudo, or use a cluster of your own with LOCKSTEP_CLUSTER=existing"
        );
    }
    Ok(())
}

/// The Debian packages whose programs are missing here. Where they cannot be installed, that is said at once.
pub(crate) fn missing_packages() -> Result<Vec<&'static str>> {
    let programs = PROGRAMS.iter().filter(|(program, _)| find_program(program).is_none()).map(|(_, package)| *package);
    let mut packages: Vec<_> = programs.collect();
    if cni_directory().is_none() {
        packages.push("containernetworking-plugins");
    }
    packages.dedup();
    if !packages.is_empty() && find_program("apt-get").is_none() {
        bail!("programs are missing: install the packages {} (Debian's names) and start again", packages.join(" "));
    }
    Ok(packages)
}

pub(crate) fn install(packages: &[&'static str], part: &Part) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    part.say(format!("installing {list}"));
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.arg("-qq").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        command::output(&mut apt).with_context(|| format!("install {list} by hand and start again"))
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())?;
    if let [first, ..] = missing_packages()?.as_slice() {
        bail!("the Debian package {first} is installed but its programs are not on PATH or in {}", CNI_DIRECTORIES[0]);
    }
    part.done();
    Ok(())
}

pub(crate) fn c_compiler() -> Result<()> {
    if find_program("cc").is_none() {
        bail!("a C compiler is missing: install the package gcc (Debian's name) and start again");
    }
    Ok(())
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

pub(crate) fn cni_directory() -> Option<&'static Path> {
    let complete = |directory: &Path| CNI_PLUGINS.iter().all(|plugin| directory.join(plugin).is_file());
    CNI_DIRECTORIES.into_iter().map(Path::new).find(|directory| complete(directory))
}

pub(crate) fn go_toolchain() -> Result<()> {
    let version = Command::new("go").arg("version").output();
    let text = version.map(|found| String::from_utf8_lossy(&found.stdout).into_owned()).unwrap_or_default();
    match go_minor(&text) {
        Some(minor) if minor >= GO_MINOR => Ok(()),
        Some(minor) => bail!("Go 1.{minor} is too old to build Kubernetes: install Go 1.{GO_MINOR} or newer"),
        None => bail!("Go is missing: install Go 1.{GO_MINOR} or newer; the cluster is built from Go modules"),
    }
}

fn go_minor(version: &str) -> Option<u32> {
    let number = version.split("go1.").nth(1)?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

pub(crate) fn free_space(directory: &Path, needed_gib: u64) -> Result<()> {
    let stats = rustix::fs::statvfs(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let free_gib = stats.f_bavail * stats.f_frsize / (1 << 30);
    if free_gib < needed_gib {
        bail!(
            "{} has {free_gib} GiB free, {needed_gib} GiB are needed: free some, or set LOCKSTEP_HOME to a larger disk",
            directory.display()
        );
    }
    Ok(())
}

/// The cluster's ports are in a network namespace of its own, so only its address range can clash with the host's.
pub(crate) fn address_range() -> Result<()> {
    let routes = fs::read_to_string("/proc/net/route").context("cannot read the host's routes")?;
    match clashing_route(&routes) {
        None => Ok(()),
        Some(interface) => bail!(
            "the cluster's address range {} is in use by the network interface {interface}: take that interface down, or use a cluster of your own with LOCKSTEP_CLUSTER=existing",
            network::RANGE
        ),
    }
}

/// The interface of a route that overlaps with the cluster's range. `/proc/net/route` has little-endian hex words.
fn clashing_route(routes: &str) -> Option<&str> {
    let address = |word: &str| u32::from_str_radix(word, 16).ok().map(|word| Ipv4Addr::from(word.swap_bytes()));
    routes.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (interface, destination, mask) = (*fields.first()?, address(fields.get(1)?)?, address(fields.get(7)?)?);
        let is_default = mask.is_unspecified();
        let ours = interface == network::HOST_INTERFACE;
        (!is_default && !ours && network::RANGE.overlaps(destination, mask)).then_some(interface)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";

    #[test]
    fn go_versions_are_read() {
        assert_eq!(go_minor("go version go1.26.8 linux/amd64"), Some(26));
        assert_eq!(go_minor("go version go1.27rc1 linux/amd64"), Some(27));
        assert_eq!(go_minor(""), None);
    }

    #[test]
    fn a_route_into_the_clusters_range_clashes() {
        let vpn = format!("{HEADER}tun0\t0080C50A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n");
        assert_eq!(clashing_route(&vpn), Some("tun0"));
    }

    #[test]
    fn default_and_distant_routes_do_not_clash() {
        let distant = format!(
            "{HEADER}eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\neth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
        );
        assert_eq!(clashing_route(&distant), None);
    }

    #[test]
    fn too_little_space_names_the_place_and_the_remedy() {
        let error = free_space(Path::new("/"), u64::MAX / (1 << 31)).unwrap_err().to_string();
        assert!(error.contains("LOCKSTEP_HOME") && error.contains("GiB"), "{error}");
    }
}
