//! Everything that has to be there before a cluster can run: Debian packages, tools from Go modules, our own images. Made side
//! by side, with one line of progress, and only what is missing.

use std::path::PathBuf;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Result, anyhow};

use crate::cargo::Profile;
use crate::home::Home;
use crate::image;
use crate::progress::{Part, Step, note};
use crate::requirements;
use crate::tools::{Tool, Tools};
use crate::usual_times;

/// What our own programs take below `target`, in GiB.
const OWN_DISK_GIB: u64 = 2;

/// Whether our own images are wanted, and how built.
pub(crate) type OwnImages = Option<Profile>;

/// Makes what is missing. Returns where the tools are, and our images.
pub(crate) fn ensure(home: &Home, needed: &[Tool], own: OwnImages) -> Result<(Tools, Vec<PathBuf>)> {
    let tools = Tools::locate(home)?;
    let missing = tools.missing(needed);
    let packages = requirements::missing_packages()?;
    if !missing.is_empty() {
        requirements::go_toolchain()?;
        requirements::c_compiler()?;
    }
    let work = Work { packages, missing, own };
    requirements::free_space(home.root(), work.disk_gib())?;
    let Some(title) = work.title() else { return Ok((tools, Vec::new())) };
    work.announce(home, &title);
    let images = work.run(&tools, title)?;
    Ok((tools, images))
}

/// What there is to do.
struct Work {
    packages: Vec<&'static str>,
    missing: Vec<Tool>,
    own: OwnImages,
}

impl Work {
    fn title(&self) -> Option<String> {
        let tools = self.missing.iter().map(|tool| tool.title());
        let ours = match self.own {
            Some(Profile::Published) => Some("Lockstep (release build)"),
            Some(Profile::Local | Profile::Simulation) => Some("Lockstep"),
            None => None,
        };
        let built: Vec<&str> = tools.chain(ours).collect();
        match (self.packages.is_empty(), built.is_empty()) {
            (true, true) => None,
            (false, true) => Some("install Debian packages".to_owned()),
            (true, false) => Some(format!("build {}", list(&built))),
            (false, false) => Some(format!("install Debian packages, build {}", list(&built))),
        }
    }

    fn disk_gib(&self) -> u64 {
        let tools: u64 = self.missing.iter().map(|tool| tool.disk_gib()).sum();
        tools + if self.own.is_some() { OWN_DISK_GIB } else { 0 }
    }

    /// Whoever waits for the first time should know for how long, and what it costs.
    fn announce(&self, home: &Home, title: &str) {
        if self.missing.is_empty() {
            return;
        }
        let minutes = usual_times::of(title).map_or(1, |usual| usual.as_secs().div_ceil(60).max(1));
        note(&format!(
            "First: {title}, from source. This takes about {minutes} min and {} GB of disk, in {} and target/. It is done once. `make clean-all` removes it.",
            self.disk_gib(),
            home.root().display()
        ));
    }

    fn run(&self, tools: &Tools, title: String) -> Result<Vec<PathBuf>> {
        let weight = |name: &str| usual_times::shipped(name).unwrap_or(1.0);
        let weights: Vec<f64> = std::iter::once(if self.packages.is_empty() { 0.0 } else { weight("Debian packages") })
            .chain([if self.own.is_some() { weight("Lockstep") } else { 0.0 }])
            .chain(self.missing.iter().map(|tool| weight(tool.title())))
            .collect();
        let (step, parts) = Step::start_parts(title, &weights);
        let [for_packages, for_own, for_tools @ ..] = parts.as_slice() else {
            unreachable!("there are two parts at least")
        };
        let images = thread::scope(|scope| {
            let packages = scope.spawn(|| or_cancel(for_packages, requirements::install(&self.packages, for_packages)));
            let own = scope
                .spawn(|| or_cancel(for_own, self.own.map(|profile| image::build_own(profile, for_own)).transpose()));
            let go = scope.spawn(|| {
                let mut each = self.missing.iter().zip(for_tools);
                each.try_for_each(|(tool, part)| or_cancel(part, tools.build(*tool, part)))
            });
            // All have ended before an error is told, so none writes behind it.
            let (packages, go, own) = (join(packages), join(go), join(own));
            packages.and(go).and(own)
        })?;
        step.done("");
        Ok(images.unwrap_or_default())
    }
}

/// One failure ends the whole: the others need not go on.
fn or_cancel<T>(part: &Part, outcome: Result<T>) -> Result<T> {
    outcome.inspect_err(|_| part.cancel_all())
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("a build panicked")))
}

/// `Kubernetes, Helm and Lockstep`
fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_names_what_is_made() {
        let work = |packages: &[&'static str], missing: &[Tool], own| {
            Work { packages: packages.to_vec(), missing: missing.to_vec(), own }.title()
        };
        assert_eq!(work(&[], &[], None), None);
        assert_eq!(work(&[], &[], Some(Profile::Local)).unwrap(), "build Lockstep");
        let all = work(&["runc"], &[Tool::Kubernetes, Tool::Helm], Some(Profile::Local)).unwrap();
        assert_eq!(all, "install Debian packages, build Kubernetes, Helm and Lockstep");
    }
}
