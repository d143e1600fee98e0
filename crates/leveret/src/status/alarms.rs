//! The alarms of the embedded broker, and the levels that raise them.

use admin::{Detail, Families, MetricKind, MetricsWriter};
use server::{Alarms, Resource};

use crate::alarms::Levels;

/// Writes the alarms under RabbitMQ's names and our own.
pub(super) fn write(levels: &Levels, alarms: &Alarms, out: &mut MetricsWriter) {
    let memory = u64::from(alarms.is_raised(Resource::Memory));
    let disk = u64::from(alarms.is_raised(Resource::Disk));
    out.family("leveret_alarm", "Whether publishers are blocked for want of this.", MetricKind::Gauge)
        .sample(&[("kind", "memory")], memory)
        .sample(&[("kind", "disk")], disk);
    out.gauge("rabbitmq_alarms_memory_used_watermark", "Whether the memory alarm stands.", memory);
    out.gauge("rabbitmq_alarms_free_disk_space_watermark", "Whether the disk alarm stands.", disk);
    let blocked = alarms.blocked_connections() as u64;
    out.gauge("leveret_blocked_connections", "Client connections that an alarm blocks.", blocked);
    // Leveret has no such alarm: at the limit of descriptors, new connections wait.
    out.gauge("rabbitmq_alarms_file_descriptor_limit", "Always 0.", 0_u64);
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
        let help = "Memory above which publishers are blocked.";
        out.gauge(&format!("{prefix}_resident_memory_limit_bytes"), help, limit);
    }
    if let Some(limit) = levels.disk_limit() {
        let help = "Free space below which publishers are blocked.";
        out.gauge(&format!("{prefix}_disk_space_available_limit_bytes"), help, limit);
    }
}

fn write_free(levels: &Levels, prefix: &str, out: &mut MetricsWriter) {
    if levels.disk_limit().is_some() {
        let help = "Free space on the data folder's file system.";
        out.gauge(&format!("{prefix}_disk_space_available_bytes"), help, levels.disk_free());
    }
}
