//! The disk's floor by fio: overwrites of a filled file past the page cache, each followed by fdatasync, one at a time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::machine::Cores;
use crate::peer::lab::Lab;
use crate::peer::outcome::{Outcome, per_op};
use crate::scenario::Floor;

/// The file that is overwritten; longer than a device's own cache would like.
const FILE_BYTES: u64 = 1 << 30;

/// fio, with the file that it overwrites.
#[derive(Debug)]
pub struct Fio {
    file: PathBuf,
    version: String,
}

impl Fio {
    /// Finds fio; the file will lie in `dir`.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn locate(dir: &Path) -> anyhow::Result<Fio> {
        let output = Command::new("fio").arg("--version").stdin(Stdio::null()).output();
        let output = output.context("fio: cannot start it; `apt-get install fio` brings it")?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Fio {
            file: dir.join("floor"),
            version,
        })
    }

    /// Its version, as it says it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Measures one write size; the first time, fills the file.
    ///
    /// # Errors
    /// When fio fails, or prints what cannot be read.
    pub fn run(&self, cell: &Floor, lab: &Lab) -> anyhow::Result<Outcome> {
        if !self.file.is_file() {
            self.fio(lab.cores, &["--bs=1M".to_owned(), "--end_fsync=1".to_owned()])?;
        }
        let seconds = |time: Duration| time.as_secs_f64().ceil();
        let printed = self.fio(
            lab.cores,
            &[
                format!("--bs={}", cell.block_bytes),
                "--overwrite=1".to_owned(),
                "--fdatasync=1".to_owned(),
                "--time_based".to_owned(),
                format!("--runtime={}", seconds(lab.options.seconds)),
                format!("--ramp_time={}", seconds(lab.options.warmup)),
            ],
        )?;
        parse(&printed, cell.block_bytes)
    }

    fn fio(&self, cores: Option<Cores>, more: &[String]) -> anyhow::Result<String> {
        let mut command = Command::new("fio");
        command.args([
            "--name=floor",
            "--rw=write",
            "--direct=1",
            "--ioengine=psync",
            "--output-format=json",
        ]);
        command
            .arg(format!("--filename={}", self.file.display()))
            .arg(format!("--size={FILE_BYTES}"))
            .args(more);
        command.stdin(Stdio::null());
        let output = Cores::start_apart(cores, || command.output().context("fio: cannot start it"))?;
        if !output.status.success() {
            bail!(
                "fio: {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[derive(Deserialize)]
struct Printed {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    /// Percent of `job_runtime`.
    usr_cpu: f64,
    sys_cpu: f64,
    /// Milliseconds.
    job_runtime: f64,
    write: Write,
    sync: Sync,
}

#[derive(Deserialize)]
struct Write {
    iops: f64,
    total_ios: f64,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Sync {
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    #[serde(default)]
    percentile: Percentiles,
}

#[derive(Deserialize, Default)]
struct Percentiles {
    #[serde(rename = "50.000000")]
    p50: Option<f64>,
}

/// Reads fio's JSON. Writes and flushes are timed apart, so of the percentiles there is only the sum of the medians.
fn parse(printed: &str, block_bytes: u64) -> anyhow::Result<Outcome> {
    // Warnings may stand before the JSON.
    let json = printed.find('{').map_or(printed, |at| &printed[at..]);
    let printed: Printed = serde_json::from_str(json).context("fio: its output is not what was expected")?;
    let job = printed.jobs.first().context("fio: it ran no job")?;
    if job.error != 0 {
        bail!("fio: the job failed with error {}", job.error);
    }
    if job.write.total_ios < 1.0 {
        bail!("fio: it wrote nothing");
    }
    let Some(flush) = job.sync.lat_ns.percentile.p50 else {
        bail!("fio: it flushed nothing, so this would be no floor");
    };
    let cpu = Duration::from_secs_f64((job.usr_cpu + job.sys_cpu) / 100.0 * job.job_runtime / 1_000.0);
    Ok(Outcome {
        achieved_per_s: job.write.iops,
        service_p50_us: job
            .write
            .clat_ns
            .percentile
            .p50
            .map(|write| (write + flush) / 1_000.0),
        bytes_per_op: block_bytes,
        cpu_us_per_op: per_op(cpu, job.write.total_ios),
        ..Outcome::of_nothing("fsync")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields that are read, as fio 3.33 prints them.
    const PRINTED: &str = r#"fio: a note on standard output
{ "fio version": "fio-3.33", "jobs": [ { "jobname": "floor", "error": 0, "usr_cpu": 2.5, "sys_cpu": 7.5,
  "job_runtime": 5000,
  "write": { "iops": 9200.5, "total_ios": 46000, "clat_ns": { "min": 1, "percentile": { "1.000000": 40000, "50.000000": 52000 } } },
  "sync": { "total_ios": 0, "lat_ns": { "percentile": { "50.000000": 49000, "99.000000": 90000 } } } } ] }"#;

    #[test]
    fn its_json_is_read() {
        let outcome = parse(PRINTED, 4_096).expect("read");
        assert_eq!(
            (outcome.achieved_per_s, outcome.service_p50_us),
            (9_200.5, Some(101.0))
        );
        assert_eq!((outcome.bytes_per_op, outcome.response), (4_096, None));
        let cpu = outcome.cpu_us_per_op.expect("some");
        assert!((cpu - 500_000.0 / 46_000.0).abs() < 1e-9, "{cpu}");
    }

    #[test]
    fn a_failed_job_or_one_without_flushes_is_no_floor() {
        for (from, to) in [
            ("\"error\": 0", "\"error\": 28"),
            ("\"total_ios\": 46000", "\"total_ios\": 0"),
            ("\"50.000000\": 49000,", ""),
            ("\"jobname\": \"floor\",", "\"jobname\": \"floor\""),
        ] {
            assert!(PRINTED.contains(from), "{from}");
            assert!(
                parse(&PRINTED.replace(from, to), 4_096).is_err(),
                "{from} -> {to}"
            );
        }
        assert!(parse("fio: engine not loadable", 4_096).is_err());
    }
}
