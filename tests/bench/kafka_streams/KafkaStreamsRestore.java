import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * The restore of a store in Kafka Streams from a changelog of one partition, with an empty state
 * directory and a group that has processed everything.
 *
 * <p>Arguments: bootstrap servers, application id, state dir, topic. It prints the milliseconds from
 * the start of the streams to their running, and those of the processor.
 */
public final class KafkaStreamsRestore {
  private static long processorMs() {
    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    return system.getProcessCpuTime() / 1_000_000;
  }

  public static void main(String[] given) throws Exception {
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given[1]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, given[2]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    StreamsBuilder builder = new StreamsBuilder();
    builder.table(
        given[3],
        Consumed.with(Serdes.Bytes(), Serdes.Bytes()),
        Materialized.<Bytes, Bytes, KeyValueStore<Bytes, byte[]>>as("rows"));
    TopicPartition log = new TopicPartition(given[3], 0);
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", given[0]))) {
      long end = admin.listOffsets(Map.of(log, OffsetSpec.latest())).all().get().get(log).offset();
      Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
      done.put(log, new OffsetAndMetadata(end));
      admin.alterConsumerGroupOffsets(given[1], done).all().get();
    }
    CountDownLatch running = new CountDownLatch(1);
    try (KafkaStreams streams = new KafkaStreams(builder.build(settings), settings)) {
      streams.setStateListener(
          (now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
              running.countDown();
            }
          });
      long beganMs = System.currentTimeMillis();
      long busyMs = processorMs();
      streams.start();
      running.await();
      System.out.println((System.currentTimeMillis() - beganMs) + " " + (processorMs() - busyMs));
    }
  }
}
