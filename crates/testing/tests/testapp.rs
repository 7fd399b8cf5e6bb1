//! The test app as a process of its own: what a pod cannot easily be asked.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_testing::report::{ConfigReport, SignalReport};
use rustix::process::{Pid, Signal, kill_process};

const APP: &str = env!("CARGO_BIN_EXE_testapp");

/// A running app, ended with the test.
struct Running {
    process: Child,
    port: u16,
}

impl Running {
    fn start(env: &[(&str, &str)]) -> Self {
        let mut command = Command::new(APP);
        command.env("PORT", "0").envs(env.iter().copied()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let said = BufReader::new(process.stderr.take().unwrap());
        let port = said.lines().map_while(Result::ok).find_map(|line| line.rsplit_once("port ")?.1.parse().ok());
        Self { process, port: port.expect("the app says its port") }
    }

    fn get(&self, path: &str) -> String {
        let url = format!("http://127.0.0.1:{}/{path}", self.port);
        let output = Command::new(APP).args(["get", &url]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_signal_is_reported_and_loads_the_configuration_again() {
    let directory = std::env::temp_dir().join(format!("testapp-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("color"), "blue").unwrap();
    let app = Running::start(&[("CONFIG_DIRS", directory.to_str().unwrap())]);
    let color = |report: &ConfigReport| report.loaded.files.values().next().cloned();
    let config = || serde_json::from_str::<ConfigReport>(&app.get("config")).unwrap();

    std::fs::write(directory.join("color"), "green").unwrap();
    assert_eq!(color(&config()).as_deref(), Some("blue"), "loaded without being asked");
    assert_eq!(config().files_now.values().next().map(String::as_str), Some("green"));

    app.signal(Signal::USR1);
    until("the new color", || color(&config()).as_deref() == Some("green"));
    let signals: Vec<SignalReport> = serde_json::from_str(&app.get("signals")).unwrap();
    assert_eq!(signals.iter().map(|report| report.signal.as_str()).collect::<Vec<_>>(), ["USR1"]);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn termination_is_a_success() {
    let mut app = Running::start(&[]);
    app.signal(Signal::TERM);
    assert!(app.process.wait().unwrap().success());
}

#[test]
fn a_crash_is_not() {
    for behavior in ["crash", "crash-after 50ms", "no such behavior"] {
        let output = Command::new(APP).env("PORT", "0").env("BEHAVIOR", behavior).output().unwrap();
        assert!(!output.status.success(), "{behavior}");
    }
}
