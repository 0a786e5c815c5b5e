import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * One pipeline of tests/bench/pipelines.py in Kafka Streams, exactly once, by two threads.
 *
 * <p>Arguments: bootstrap servers, application id, state dir, pipeline, input, table and output
 * topic. It ends when the group has committed everything that its topics have, and prints the
 * milliseconds from the first record to then; with one more argument, `forever`, it is killed. Rows are bytes; settings are
 * the defaults of Kafka Streams, but for the guarantee, the number of threads, and what system
 * properties that begin with `streams.` say.
 */
public final class KafkaStreamsBench {
  private static final AtomicLong FIRST = new AtomicLong();
  private static final Duration HOUR = Duration.ofHours(1);
  private static final Duration SECOND = Duration.ofSeconds(1);
  private static final Duration GRACE = Duration.ofSeconds(60);
  private static final Duration TENTH = Duration.ofMillis(100);
  private static final Consumed<Bytes, Bytes> READ = Consumed.with(Serdes.Bytes(), Serdes.Bytes());

  private static final String PREFIX = "streams.";

  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Serde<ObjectNode> OBJECTS =
      Serdes.serdeFrom(
          (topic, value) -> written(value), (topic, bytes) -> bytes == null ? null : parsed(bytes));

  private static byte[] written(ObjectNode value) {
    try {
      return value == null ? null : JSON.writeValueAsBytes(value);
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
  }

  private static ObjectNode parsed(byte[] bytes) {
    try {
      return (ObjectNode) JSON.readTree(bytes);
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
  }

  /** Notes when the first record came. */
  public static final class Noting implements TimestampExtractor {
    @Override
    public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
      if (FIRST.get() == 0) {
        FIRST.compareAndSet(0, System.currentTimeMillis());
      }
      return record.timestamp();
    }
  }

  /** One get, one put, one forward for each record. */
  private static final class Total implements Processor<Bytes, Bytes, Bytes, Long> {
    private ProcessorContext<Bytes, Long> context;
    private KeyValueStore<Bytes, Long> store;

    @Override
    public void init(ProcessorContext<Bytes, Long> given) {
      context = given;
      store = given.getStateStore("totals");
    }

    @Override
    public void process(Record<Bytes, Bytes> record) {
      Long before = store.get(record.key());
      long total = (before == null ? 0 : before) + record.value().get().length;
      store.put(record.key(), total);
      context.forward(record.withValue(total));
    }
  }

  private final StreamsBuilder builder = new StreamsBuilder();
  private final String input;
  private final String table;
  private final String output;

  private KafkaStreamsBench(String input, String table, String output) {
    this.input = input;
    this.table = table;
    this.output = output;
  }

  private KStream<Bytes, Bytes> records() {
    return builder.stream(input, READ);
  }

  private KGroupedStream<Bytes, Bytes> grouped() {
    return records().groupByKey(Grouped.with(Serdes.Bytes(), Serdes.Bytes()));
  }

  private void write(KStream<Bytes, Bytes> results) {
    results.to(output, Produced.with(Serdes.Bytes(), Serdes.Bytes()));
  }

  private void writeCounts(KTable<Bytes, Long> counts) {
    counts.toStream().to(output, Produced.with(Serdes.Bytes(), Serdes.Long()));
  }

  private <W> void writeWindows(KTable<Windowed<W>, Long> counts, Serde<Windowed<W>> keys) {
    counts.toStream().to(output, Produced.with(keys, Serdes.Long()));
  }

  private static Bytes both(Bytes one, Bytes other) {
    byte[] first = one == null ? new byte[0] : one.get();
    byte[] second = other == null ? new byte[0] : other.get();
    byte[] joined = java.util.Arrays.copyOf(first, first.length + second.length);
    System.arraycopy(second, 0, joined, first.length, second.length);
    return Bytes.wrap(joined);
  }

  private static <S extends org.apache.kafka.streams.processor.StateStore>
      Materialized<Bytes, Long, S> counts(String name) {
    return Materialized.<Bytes, Long, S>as(name)
        .withKeySerde(Serdes.Bytes())
        .withValueSerde(Serdes.Long());
  }

  private static Serde<Windowed<Bytes>> inWindows(long sizeMs) {
    return new org.apache.kafka.streams.kstream.WindowedSerdes.TimeWindowedSerde<>(
        Serdes.Bytes(), sizeMs);
  }

  private void build(String pipeline) {
    switch (pipeline) {
      case "counting" -> writeCounts(grouped().count(counts("counts")));
      case "counting_each" ->
          writeCounts(
              grouped()
                  .count(
                      Materialized.<Bytes, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                          .withKeySerde(Serdes.Bytes())
                          .withValueSerde(Serdes.Long())
                          .withCachingDisabled()));
      case "per_record" -> {
        builder.addStateStore(
            Stores.keyValueStoreBuilder(
                Stores.persistentKeyValueStore("totals"), Serdes.Bytes(), Serdes.Long()));
        records()
            .process(Total::new, "totals")
            .to(output, Produced.with(Serdes.Bytes(), Serdes.Long()));
      }
      case "joining" ->
          write(records().join(builder.table(table, READ), (one, row) -> both(row, one)));
      case "enriching" -> {
        Consumed<Bytes, ObjectNode> objects = Consumed.with(Serdes.Bytes(), OBJECTS);
        writeWindows(
            builder
                .stream(input, objects)
                .filter((key, order) -> order.get("amount").asInt() >= 100)
                .join(
                    builder.table(table, objects),
                    (order, row) -> order.<ObjectNode>set("country", row.get("country")))
                .groupByKey(Grouped.with(Serdes.Bytes(), OBJECTS))
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), HOUR))
                .aggregate(
                    () -> 0L,
                    (key, order, total) -> total + order.get("amount").asInt(),
                    counts("sums")),
            inWindows(60_000));
      }
      case "joining_globally" ->
          write(
              records()
                  .leftJoin(
                      builder.globalTable(table, READ),
                      (key, value) -> key,
                      (one, row) -> row == null ? one : row));
      case "windows" ->
          writeWindows(
              grouped()
                  .windowedBy(TimeWindows.ofSizeAndGrace(SECOND, GRACE))
                  .count(counts("windows")),
              inWindows(1000));
      case "hops" ->
          writeWindows(
              grouped()
                  .windowedBy(
                      TimeWindows.ofSizeAndGrace(SECOND, GRACE).advanceBy(Duration.ofMillis(250)))
                  .count(counts("windows")),
              inWindows(1000));
      case "sessions" ->
          writeWindows(
              grouped()
                  .windowedBy(SessionWindows.ofInactivityGapAndGrace(SECOND, GRACE))
                  .count(counts("windows")),
              new org.apache.kafka.streams.kstream.WindowedSerdes.SessionWindowedSerde<>(
                  Serdes.Bytes()));
      case "slides" ->
          writeWindows(
              grouped()
                  .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(TENTH, GRACE))
                  .count(counts("windows")),
              inWindows(100));
      case "final_windows" ->
          writeWindows(
              grouped()
                  .windowedBy(TimeWindows.ofSizeAndGrace(SECOND, TENTH))
                  .count(
                      KafkaStreamsBench
                          .<org.apache.kafka.streams.state.WindowStore<Bytes, byte[]>>counts(
                              "windows"))
                  .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded())),
              inWindows(1000));
      case "fewer_updates" ->
          writeCounts(
              grouped()
                  .count(KafkaStreamsBench.<KeyValueStore<Bytes, byte[]>>counts("counts"))
                  .suppress(Suppressed.untilTimeLimit(TENTH, BufferConfig.unbounded())));
      case "meeting" -> streams(JoinWindows.ofTimeDifferenceAndGrace(HOUR, GRACE), false);
      case "missing" ->
          streams(JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, TENTH), true);
      case "both_tables" ->
          write(
              builder
                  .table(input, READ)
                  .outerJoin(builder.table(table, READ), KafkaStreamsBench::both)
                  .toStream());
      case "regrouping" ->
          writeCounts(
              builder
                  .table(input, READ)
                  .groupBy(
                      (key, value) -> KeyValue.pair(Bytes.wrap(new byte[] {value.get()[0]}), value),
                      Grouped.with(Serdes.Bytes(), Serdes.Bytes()))
                  .count(counts("counts")));
      case "referring" ->
          write(
              builder
                  .table(input, READ)
                  .<Bytes, Bytes, Bytes>join(
                      builder.table(table, READ),
                      (key, value) -> key,
                      KafkaStreamsBench::both,
                      Materialized.with(Serdes.Bytes(), Serdes.Bytes()))
                  .toStream());
      case "cogrouped" -> {
        KGroupedStream<Bytes, Bytes> others =
            builder
                .stream(table, READ)
                .groupByKey(Grouped.with(Serdes.Bytes(), Serdes.Bytes()));
        writeCounts(
            grouped()
                .<Long>cogroup((key, value, count) -> count + 1)
                .cogroup(others, (key, value, count) -> count + 1000)
                .aggregate(() -> 0L, counts("sums")));
      }
      default -> throw new IllegalArgumentException("no pipeline " + pipeline);
    }
  }

  private void streams(JoinWindows windows, boolean left) {
    KStream<Bytes, Bytes> others = builder.stream(table, READ);
    StreamJoined<Bytes, Bytes, Bytes> serdes =
        StreamJoined.with(Serdes.Bytes(), Serdes.Bytes(), Serdes.Bytes());
    write(
        left
            ? records().leftJoin(others, (one, other) -> one, windows, serdes)
            : records().join(others, KafkaStreamsBench::both, windows, serdes));
  }

  /** Wait until the group has committed the ends of all topics that it reads. */
  private static void awaitEnd(Admin admin, String group, Set<String> sources) throws Exception {
    Set<TopicPartition> wanted = new HashSet<>();
    admin
        .describeTopics(sources)
        .allTopicNames()
        .get()
        .forEach(
            (name, topic) ->
                topic.partitions().forEach(p -> wanted.add(new TopicPartition(name, p.partition()))));
    while (true) {
      Map<TopicPartition, OffsetAndMetadata> done =
          admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
      Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
      wanted.forEach(each -> asked.put(each, OffsetSpec.latest()));
      done.keySet().forEach(each -> asked.put(each, OffsetSpec.latest()));
      Map<TopicPartition, ListOffsetsResult.ListOffsetsResultInfo> ends =
          admin.listOffsets(asked).all().get();
      boolean behind = false;
      for (Map.Entry<TopicPartition, ListOffsetsResult.ListOffsetsResultInfo> end :
          ends.entrySet()) {
        OffsetAndMetadata at = done.get(end.getKey());
        // The marker at the end of an internal topic's last transaction may not be counted yet.
        long marker = wanted.contains(end.getKey()) ? 0 : 1;
        behind |= end.getValue().offset() > (at == null ? 0 : at.offset()) + marker;
      }
      if (!behind) {
        return;
      }
      Thread.sleep(20);
    }
  }

  public static void main(String[] given) throws Exception {
    String group = given[1];
    KafkaStreamsBench bench = new KafkaStreamsBench(given[4], given[5], given[6]);
    bench.build(given[3]);
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, group);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, given[2]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.DEFAULT_TIMESTAMP_EXTRACTOR_CLASS_CONFIG, Noting.class);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.BytesSerde.class);
    settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.BytesSerde.class);
    System.getProperties()
        .stringPropertyNames()
        .stream()
        .filter(name -> name.startsWith(PREFIX))
        .forEach(name -> settings.put(name.substring(PREFIX.length()), System.getProperty(name)));
    Set<String> sources = new HashSet<>();
    sources.add(given[4]);
    var topology = bench.builder.build(settings);
    String described = topology.describe().toString();
    boolean global = described.contains("global");
    if (described.contains(given[5]) && !global) {
      sources.add(given[5]);
    }
    try (KafkaStreams streams = new KafkaStreams(topology, settings);
        Admin admin = Admin.create(Map.of("bootstrap.servers", given[0]))) {
      streams.setUncaughtExceptionHandler(
          error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
          });
      streams.start();
      if (given.length > 7) {
        Thread.currentThread().join();
      }
      awaitEnd(admin, group, sources);
      System.out.println(System.currentTimeMillis() - FIRST.get());
    }
  }
}
