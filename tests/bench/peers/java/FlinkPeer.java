import java.util.Map;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/**
 * The jobs of tests/bench/peers in Flink, exactly once, with parallelism 2 in one JVM.
 *
 * <p>Arguments: bootstrap servers, name, folder, pipeline, input, table and output topic, `forever`.
 * Two jobs are SQL; the one of a processor is a KeyedProcessFunction between tables of SQL.
 */
public final class FlinkPeer {
  private static final String JOINED =
      "SELECT o.k || '@' || CAST(o.`at` - o.`at` % 60000 AS STRING) AS k, o.amount AS amount"
          + " FROM orders AS o JOIN customers AS c ON o.k = c.k WHERE o.amount >= 100";

  private final String[] given;

  private FlinkPeer(String[] given) {
    this.given = given;
  }

  /** One get, one put, one row out for each record. */
  private static final class Total extends KeyedProcessFunction<String, Row, Row> {
    private transient ValueState<Long> total;

    @Override
    public void open(org.apache.flink.api.common.functions.OpenContext context) {
      total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Types.LONG));
    }

    @Override
    public void processElement(Row record, Context context, Collector<Row> out) throws Exception {
      Long before = total.value();
      long after = (before == null ? 0 : before) + ((byte[]) record.getField(1)).length;
      total.update(after);
      out.collect(Row.of(context.getCurrentKey(), Long.toString(after)));
    }
  }

  private String common(String topic) {
    return "'topic' = '" + topic + "', 'properties.bootstrap.servers' = '" + given[0] + "', "
        + "'properties.group.id' = '" + given[1] + "', "
        + "'properties.isolation.level' = 'read_committed', "
        + "'key.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY'";
  }

  private String read(String name, String topic, String columns, String format) {
    return "CREATE TABLE " + name + " (k STRING, " + columns + ") WITH ('connector' = 'kafka', "
        + common(topic) + ", 'key.fields' = 'k', 'scan.startup.mode' = 'earliest-offset', "
        + "'value.format' = '" + format + "')";
  }

  private String write(boolean updates) {
    return "CREATE TABLE results (k STRING, n STRING"
        + (updates ? ", PRIMARY KEY (k) NOT ENFORCED" : "") + ") WITH ("
        + (updates ? "'connector' = 'upsert-kafka', " : "'connector' = 'kafka', 'key.fields' = 'k', ")
        + common(given[6]) + ", 'properties.transaction.timeout.ms' = '600000', "
        + "'sink.delivery-guarantee' = 'exactly-once', "
        + "'sink.transactional-id-prefix' = '" + given[1] + "', 'value.format' = 'raw')";
  }

  private void run() throws Exception {
    Configuration settings =
        Configuration.fromMap(
            Map.of(
                "parallelism.default", "2",
                "state.backend.type", "rocksdb",
                "execution.checkpointing.interval", "1 s",
                "execution.checkpointing.mode", "EXACTLY_ONCE",
                "execution.checkpointing.dir", "file://" + given[2] + "/checkpoints"));
    var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
    var tables = StreamTableEnvironment.create(environment);
    tables.executeSql(write(!given[3].equals("per_record")));
    switch (given[3]) {
      case "counting" -> {
        tables.executeSql(read("records", given[4], "v BYTES", "raw"));
        tables
            .executeSql(
                "INSERT INTO results SELECT k, CAST(COUNT(*) AS STRING) FROM records GROUP BY k")
            .await();
      }
      case "enriching" -> {
        tables.executeSql(read("orders", given[4], "amount INT, `at` BIGINT", "json"));
        tables.executeSql(
            "CREATE TABLE customers (k STRING, country STRING, PRIMARY KEY (k) NOT ENFORCED) WITH"
                + " ('connector' = 'upsert-kafka', " + common(given[5]) + ", 'value.format' = 'json')");
        tables
            .executeSql(
                "INSERT INTO results SELECT k, CAST(SUM(amount) AS STRING) FROM (" + JOINED
                    + ") GROUP BY k")
            .await();
      }
      case "per_record" -> {
        tables.executeSql(read("records", given[4], "v BYTES", "raw"));
        DataStream<Row> totals =
            tables
                .toDataStream(tables.from("records"))
                .keyBy(record -> (String) record.getField(0))
                .process(new Total())
                .returns(Types.ROW_NAMED(new String[] {"k", "n"}, Types.STRING, Types.STRING));
        tables.fromDataStream(totals).executeInsert("results").await();
      }
      default -> throw new IllegalArgumentException("no pipeline " + given[3]);
    }
  }

  public static void main(String[] given) throws Exception {
    new FlinkPeer(given).run();
  }
}
