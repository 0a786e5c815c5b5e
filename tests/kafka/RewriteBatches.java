import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;

/** Reads record batches from a file by Kafka's own client, and writes each anew to another file, with a marker. */
public class RewriteBatches {
    public static void main(String[] files) throws Exception {
        ByteBuffer read = ByteBuffer.wrap(Files.readAllBytes(Path.of(files[0])));
        ByteBuffer written = ByteBuffer.allocate(1 << 26);
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(read).batches()) {
            batch.ensureValid();
            List<SimpleRecord> rows = new ArrayList<>();
            for (Record record : batch) {
                record.ensureValid();
                rows.add(new SimpleRecord(record.timestamp(), record.key(), record.value(), record.headers()));
            }
            written.put(MemoryRecords.withRecords(
                RecordBatch.MAGIC_VALUE_V2, batch.baseOffset(), Compression.of(batch.compressionType()).build(),
                TimestampType.CREATE_TIME, batch.producerId(), batch.producerEpoch(), batch.baseSequence(), 0,
                batch.isTransactional(), rows.toArray(new SimpleRecord[0])).buffer());
            written.put(MemoryRecords.withEndTransactionMarker(
                batch.lastOffset() + 1, 0L, 0, batch.producerId(), batch.producerEpoch(),
                new EndTransactionMarker(ControlRecordType.ABORT, 0)).buffer());
        }
        byte[] all = new byte[written.flip().remaining()];
        written.get(all);
        Files.write(Path.of(files[1]), all);
    }
}
