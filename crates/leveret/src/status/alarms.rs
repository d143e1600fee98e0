//! The alarms of the embedded broker or the spool, and the levels that raise them.

use admin::{Detail, Families, MetricKind, MetricsWriter};
use server::{Alarms, Resource};

use crate::alarms::Levels;

/// Writes the alarms under RabbitMQ's names and our own.
pub(super) fn write(levels: &Levels, alarms: &Alarms, out: &mut MetricsWriter) {
    let memory = u64::from(alarms.is_raised(Resource::Memory));
    let disk = u64::from(alarms.is_raised(Resource::Disk));
    out.family("leveret_alarm", "1 while this alarm blocks publishers.", MetricKind::Gauge)
        .sample(&[("kind", "memory")], memory)
        .sample(&[("kind", "disk")], disk);
    out.gauge("rabbitmq_alarms_memory_used_watermark", "1 while the memory alarm is in effect.", memory);
    out.gauge("rabbitmq_alarms_free_disk_space_watermark", "1 while the disk alarm is in effect.", disk);
    let blocked = alarms.blocked_connections() as u64;
    out.gauge("leveret_blocked_connections", "Client connections currently blocked by an alarm.", blocked);
    // Leveret has no such alarm: at the limit of descriptors, new connections wait or are closed.
    out.gauge("rabbitmq_alarms_file_descriptor_limit", "Always 0: there is no file descriptor alarm.", 0_u64);
    write_limits(levels, "rabbitmq", out);
    write_free(levels, "rabbitmq", out);
}

/// Writes the part of this that belongs to `/metrics/detailed`.
pub(super) fn write_detailed(levels: &Levels, detail: &Detail, out: &mut MetricsWriter) {
    if detail.wants(&[Families::Node]) {
        write_limits(levels, "rabbitmq_detailed", out);
    }
    if detail.wants(&[Families::NodeCoarse]) {
        write_free(levels, "rabbitmq_detailed", out);
    }
}

fn write_limits(levels: &Levels, prefix: &str, out: &mut MetricsWriter) {
    if let Some(limit) = levels.memory_limit() {
        let help = "Memory limit in bytes above which publishers are blocked.";
        out.gauge(&format!("{prefix}_resident_memory_limit_bytes"), help, limit);
    }
    if let Some(limit) = levels.disk_limit() {
        let help = "Free disk space in bytes below which publishers are blocked.";
        out.gauge(&format!("{prefix}_disk_space_available_limit_bytes"), help, limit);
    }
}

fn write_free(levels: &Levels, prefix: &str, out: &mut MetricsWriter) {
    if levels.disk_limit().is_some() {
        let help = "Free disk space in bytes on the file system of the data directory.";
        out.gauge(&format!("{prefix}_disk_space_available_bytes"), help, levels.disk_free());
    }
}
