# Bunny with its automatic recovery: a session that publishes with confirms, and one that consumes.

require 'bunny'
require 'json'

PAUSE = 0.01
PREFETCH = 20
RECOVERY_SECONDS = 1

uri, queue_name, pause = ARGV
$stdout.sync = true

def report(what)
  $stdout.write(JSON.generate(what) + "\n")
end

def session(uri)
  Bunny.new(uri, network_recovery_interval: RECOVERY_SECONDS, log_file: $stderr)
end

# Messages with numbers, one at a time: after a recovery, Bunny 2.19 overlooks an ack of several ("multiple"; its channel.rb
# adds the offset of delivery tags twice). A message that a lost connection has left unconfirmed is published again after the
# recovery.
class Publisher
  def initialize(session, queue_name)
    @lock = Monitor.new
    @changed = @lock.new_cond
    @recovering = false
    # Number by publish sequence number.
    @unconfirmed = {}
    @again = []
    @next = 0
    session.before_recovery_attempt_starts { @lock.synchronize { @recovering = true } }
    session.after_recovery_completed { recovered }
    session.start
    @channel = session.create_channel
    @channel.confirm_select(method(:settled).to_proc)
    @queue = @channel.queue(queue_name, durable: true)
  end

  def run
    loop do
      begin
        publish(@again.shift || take_next)
        await_confirms
      rescue Bunny::Exception, SystemCallError, IOError => e
        report(lost: e.class.name, error: e.message)
        await_recovery
      end
      sleep PAUSE
    end
  end

  private

  def take_next
    @next += 1
  end

  def publish(number)
    @lock.synchronize do
      @changed.wait_while { @recovering }
      @unconfirmed[@channel.next_publish_seq_no] = number
    end
    @queue.publish(number.to_s, persistent: true)
  end

  def settled(sequence_number, _multiple, nack)
    @lock.synchronize do
      number = @unconfirmed.delete(sequence_number)
      if nack
        @again << number if number
      elsif number
        report(confirmed: number)
      end
      @changed.broadcast
    end
  end

  def recovered
    @lock.synchronize do
      @again.concat(@unconfirmed.values)
      @unconfirmed.clear
      @recovering = false
      @changed.broadcast
    end
  end

  def await_confirms
    @lock.synchronize { @changed.wait_until { @unconfirmed.empty? } }
  end

  # The error may come before the session knows of its failure, and after the recovery.
  def await_recovery
    @lock.synchronize { @changed.wait_until { !@recovering && @unconfirmed.empty? } }
  end
end

consumer = session(uri).start
channel = consumer.create_channel
channel.prefetch(PREFETCH)
channel.queue(queue_name, durable: true).subscribe(manual_ack: true) do |delivery, _properties, body|
  sleep PAUSE while File.exist?(pause)
  channel.ack(delivery.delivery_tag)
  report(received: body.to_i)
end

Publisher.new(session(uri), queue_name).run
