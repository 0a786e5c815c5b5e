/* Reads a record set as a Fetch answer or a log segment has it.

   Nothing of the input is trusted: every length is compared with what is left before it is used,
   and every number is read once. What does not fit is an error that names the batch. */

#include "_records.h"

typedef struct {
    int64_t base_offset, base_timestamp, max_timestamp, producer_id;
    int32_t last_delta, count;
    uint16_t attributes;
    const uint8_t *records, *end;
} batch;

typedef struct {
    PyObject *decompress; /* called with codec, payload and offset */
    PyObject *malformed;  /* the class of errors */
    int64_t start, next_offset, limit;
    int check_crc;
    /* Aborted transactions by first offset, and which producers are in one now. */
    int64_t *aborted, *dead;
    Py_ssize_t aborted_count, aborted_seen, dead_count;
    gathered all;
} decoding;

static const uint8_t *set_of(const decoding *d) { return d->all.set.buf; }

static int refuse(const decoding *d, int64_t offset, const char *what)
{
    PyErr_Format(d->malformed, "the batch at offset %lld cannot be read: %s", (long long)offset,
                 what);
    return -1;
}

/* A whole number in zigzag and base 128, of up to 64 bits; 0 if it does not fit or is cut off. */
static inline int read_long(cursor *c, int64_t *read)
{
    const uint8_t *p = c->at;
    uint64_t value = 0;
    for (unsigned shift = 0; p < c->end && shift < 64; shift += 7) {
        uint8_t byte = *p++;
        if (shift == 63 && byte > 1)
            return 0;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            c->at = p;
            *read = (int64_t)(value >> 1 ^ (0 - (value & 1)));
            return 1;
        }
    }
    return 0;
}

static inline int read_int(cursor *c, int32_t *read)
{
    int64_t wide;
    if (!read_long(c, &wide) || wide < INT32_MIN || wide > INT32_MAX)
        return 0;
    *read = (int32_t)wide;
    return 1;
}

/* A length and as many bytes; a length of -1 is null where that is allowed. */
static inline int read_piece(cursor *c, piece *read, int nullable)
{
    int32_t size;
    if (!read_int(c, &size) || size < (nullable ? -1 : 0) || size > c->end - c->at)
        return 0;
    read->data = size < 0 ? NULL : c->at;
    read->size = size < 0 ? 0 : size;
    c->at += read->size;
    return 1;
}

/* Read a record but its headers: how many there are, and where. */
static inline int read_record(const decoding *d, const batch *b, cursor *c, record *r,
                              int32_t *headers, cursor *rest)
{
    int32_t size, delta;
    int64_t time_delta;
    if (!read_int(c, &size) || size < RECORD_BYTES_MIN - 1 || size > c->end - c->at)
        return refuse(d, b->base_offset, "the length of a record does not fit");
    cursor in = {c->at + 1, c->at + size}; /* no bit of a record's attributes means anything yet */
    c->at += size;
    if (!read_long(&in, &time_delta) || !read_int(&in, &delta))
        return refuse(d, b->base_offset, "a record has a number that does not end");
    if (delta < 0 || delta > b->last_delta)
        return refuse(d, b->base_offset, "a record has an offset outside its batch");
    if (!read_piece(&in, &r->key, 1))
        return refuse(d, b->base_offset, "the length of a key does not fit");
    if (!read_piece(&in, &r->value, 1))
        return refuse(d, b->base_offset, "the length of a value does not fit");
    /* A header has two lengths at least. */
    if (!read_int(&in, headers) || *headers < 0 || *headers > (in.end - in.at) / 2)
        return refuse(d, b->base_offset, "the number of headers does not fit");
    if (!*headers && in.at != in.end)
        return refuse(d, b->base_offset, "a record is longer than its fields");
    r->timestamp = b->attributes & LOG_APPEND_TIME
                       ? b->max_timestamp
                       : (int64_t)((uint64_t)b->base_timestamp + (uint64_t)time_delta);
    r->offset = b->base_offset + delta;
    *rest = in;
    return 0;
}

static PyObject *header_of(const piece *name, const piece *value)
{
    /* What is not UTF-8 is replaced, as Java does. */
    PyObject *text = PyUnicode_DecodeUTF8((const char *)name->data, name->size, "replace");
    PyObject *content = Py_None, *pair = NULL;
    if (value->data != NULL)
        content = PyBytes_FromStringAndSize((const char *)value->data, value->size);
    else
        Py_INCREF(content);
    if (text != NULL && content != NULL)
        pair = PyTuple_Pack(2, text, content);
    Py_XDECREF(text);
    Py_XDECREF(content);
    return pair;
}

/* The headers of a record as a tuple of pairs. */
static PyObject *read_headers(decoding *d, const batch *b, int32_t count, cursor *c)
{
    PyObject *made = PyTuple_New(count);
    for (int32_t i = 0; made != NULL && i < count; i++) {
        piece name, value;
        PyObject *pair = NULL;
        if (!read_piece(c, &name, 0) || !read_piece(c, &value, 1))
            refuse(d, b->base_offset, "the length of a header does not fit");
        else
            pair = header_of(&name, &value);
        if (pair == NULL || PyTuple_SetItem(made, i, pair) < 0)
            Py_CLEAR(made);
        else
            d->all.bytes += name.size + value.size;
    }
    if (made != NULL && c->at != c->end) {
        refuse(d, b->base_offset, "a record is longer than its fields");
        Py_CLEAR(made);
    }
    return made;
}

/* Add the records of a batch from `start` on; 1 if the limit ended that, -1 for an error. */
static int add_records(decoding *d, const batch *b, const uint8_t *data, Py_ssize_t size)
{
    cursor c = {data, data + size}, rest;
    if (b->count > size / RECORD_BYTES_MIN)
        return refuse(d, b->base_offset, "it has more records than bytes for them");
    if (gather_payload(&d->all, b->count, data, size, b->records - set_of(d),
                       data == b->records) < 0)
        return -1;
    int64_t last = b->base_offset - 1;
    for (int32_t i = 0; i < b->count; i++) {
        record r;
        int32_t headers;
        if (d->all.count >= d->limit) {
            d->next_offset = last + 1 > d->start ? last + 1 : d->start;
            return 1;
        }
        if (read_record(d, b, &c, &r, &headers, &rest) < 0)
            return -1;
        if (r.offset <= last)
            return refuse(d, b->base_offset, "offsets of records do not rise");
        last = r.offset;
        if (r.offset < d->start)
            continue;
        PyObject *pairs = NULL;
        if (headers && (pairs = read_headers(d, b, headers, &rest)) == NULL)
            return -1;
        if (gather_add(&d->all, &r, pairs) < 0)
            return -1;
    }
    if (c.at != c.end)
        return refuse(d, b->base_offset, "bytes are left behind its last record");
    return 0;
}

/* Whether a control batch ends a transaction as aborted; an empty one does not. */
static int is_abort(const decoding *d, const batch *b, const uint8_t *data, Py_ssize_t size)
{
    cursor c = {data, data + size}, rest;
    record r;
    int32_t headers;
    if (!b->count)
        return 0;
    if (read_record(d, b, &c, &r, &headers, &rest) < 0)
        return -1;
    if (r.key.size < 4)
        return refuse(d, b->base_offset, "its marker has no type");
    return load16(r.key.data + 2) == 0;
}

typedef int (*reader)(decoding *, const batch *, const uint8_t *, Py_ssize_t);

static int read_marker(decoding *d, const batch *b, const uint8_t *data, Py_ssize_t size)
{
    int abort = is_abort(d, b, data, size);
    for (Py_ssize_t i = 0; abort > 0 && i < d->dead_count; i++)
        if (d->dead[i] == b->producer_id) {
            d->dead[i] = d->dead[--d->dead_count];
            break;
        }
    return abort < 0 ? -1 : 0;
}

/* Give the records of a batch to a reader, decompressed. */
static int with_records(decoding *d, const batch *b, reader read)
{
    int codec = b->attributes & CODEC_BITS;
    if (!codec)
        return read(d, b, b->records, b->end - b->records);
    /* A slice of a memoryview, so that it stays valid even if the function keeps it. */
    PyObject *whole = PyMemoryView_FromObject(d->all.source);
    PyObject *payload = whole == NULL ? NULL
                                      : PySequence_GetSlice(whole, b->records - set_of(d),
                                                            b->end - set_of(d));
    Py_XDECREF(whole);
    if (payload == NULL)
        return -1;
    PyObject *plain = PyObject_CallFunction(d->decompress, "iOL", codec, payload,
                                            (long long)b->base_offset);
    Py_DECREF(payload);
    if (plain == NULL)
        return -1;
    Py_buffer view;
    int failed = PyObject_GetBuffer(plain, &view, PyBUF_SIMPLE);
    if (!failed) {
        failed = read(d, b, view.buf, view.len);
        PyBuffer_Release(&view);
    }
    Py_DECREF(plain);
    return failed;
}

static int is_dead(decoding *d, const batch *b)
{
    while (d->aborted_seen < d->aborted_count &&
           d->aborted[2 * d->aborted_seen + 1] <= b->base_offset + b->last_delta) {
        int64_t producer = d->aborted[2 * d->aborted_seen++];
        Py_ssize_t i = 0;
        while (i < d->dead_count && d->dead[i] != producer)
            i++;
        if (i == d->dead_count)
            d->dead[d->dead_count++] = producer;
    }
    for (Py_ssize_t i = 0; i < d->dead_count; i++)
        if (d->dead[i] == b->producer_id)
            return (b->attributes & TRANSACTIONAL) != 0;
    return 0;
}

/* Read the head of the batch at p, of which all bytes are there. */
static int read_head(const decoding *d, const uint8_t *p, int32_t length, batch *b)
{
    int64_t base = (int64_t)load64(p);
    if (length <= AT_MAGIC - AT_LEADER_EPOCH)
        return refuse(d, base, "its length is too small");
    if (p[AT_MAGIC] < 2)
        return refuse(d, base, p[AT_MAGIC] ? "it has magic 1, of before Kafka 0.11"
                                           : "it has magic 0, of before Kafka 0.10");
    if (p[AT_MAGIC] != 2)
        return refuse(d, base, "it has a magic that is not known");
    if (length < AT_RECORDS - AT_LEADER_EPOCH)
        return refuse(d, base, "its length is too small");
    b->base_offset = base;
    b->attributes = load16(p + AT_ATTRIBUTES);
    b->last_delta = (int32_t)load32(p + AT_LAST_DELTA);
    b->base_timestamp = (int64_t)load64(p + AT_BASE_TIMESTAMP);
    b->max_timestamp = (int64_t)load64(p + AT_MAX_TIMESTAMP);
    b->producer_id = (int64_t)load64(p + AT_PRODUCER_ID);
    b->count = (int32_t)load32(p + AT_COUNT);
    b->records = p + AT_RECORDS;
    b->end = p + AT_LEADER_EPOCH + length;
    if (base < 0 || b->last_delta < 0 || base > INT64_MAX - 1 - b->last_delta)
        return refuse(d, base, "its offsets are not possible");
    if (b->count < 0)
        return refuse(d, base, "its number of records is negative");
    return 0;
}

static int check(const decoding *d, const uint8_t *p, const batch *b)
{
    if (d->check_crc &&
        crc32c(p + AT_ATTRIBUTES, (size_t)(b->end - p - AT_ATTRIBUTES)) != load32(p + AT_CRC))
        return refuse(d, b->base_offset, "its checksum (CRC-32C) is wrong");
    if (b->attributes & ~KNOWN_BITS)
        return refuse(d, b->base_offset, "it has attributes that are not known");
    if ((b->attributes & CODEC_BITS) > 4)
        return refuse(d, b->base_offset, "its compression is not known");
    return 0;
}

static int decode_set(decoding *d)
{
    const uint8_t *p = set_of(d), *end = p + d->all.set.len;
    int64_t floor = 0; /* where the batch before ended */
    while (end - p >= AT_LEADER_EPOCH && d->all.count < d->limit) {
        batch b;
        int32_t length = (int32_t)load32(p + AT_LENGTH);
        if (length < 0)
            return refuse(d, (int64_t)load64(p), "its length is negative");
        if (length > end - p - AT_LEADER_EPOCH)
            break; /* cut off, as answers are: the next one begins with it */
        if (read_head(d, p, length, &b) < 0)
            return -1;
        if (b.base_offset < floor)
            return refuse(d, b.base_offset, "it begins before the end of the batch before it");
        floor = b.base_offset + b.last_delta + 1;
        int read_before = floor <= d->start;
        int dead = is_dead(d, &b);
        int marks = b.attributes & CONTROL && d->dead_count;
        if ((!read_before || marks) && check(d, p, &b) < 0)
            return -1;
        if (marks && with_records(d, &b, read_marker) < 0)
            return -1;
        p = b.end;
        if (read_before)
            continue;
        d->next_offset = floor;
        if (!dead && !(b.attributes & CONTROL)) {
            int ended = with_records(d, &b, add_records);
            if (ended)
                return ended < 0 ? -1 : 0;
        }
    }
    return 0;
}

/* Pairs of producer id and first offset, which rise. */
static int take_aborted(decoding *d, PyObject *pairs)
{
    Py_ssize_t count = PyList_Size(pairs);
    if (count < 0)
        return -1;
    d->aborted = PyMem_Malloc((size_t)(2 * count + 1) * sizeof(int64_t));
    d->dead = PyMem_Malloc((size_t)(count + 1) * sizeof(int64_t));
    if (d->aborted == NULL || d->dead == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long long producer, first;
        PyObject *pair = PyList_GetItem(pairs, i);
        if (pair == NULL || !PyTuple_Check(pair)) {
            PyErr_SetString(PyExc_TypeError, "an aborted transaction is a pair of numbers");
            return -1;
        }
        if (!PyArg_ParseTuple(pair, "LL", &producer, &first))
            return -1;
        d->aborted[2 * i] = producer;
        d->aborted[2 * i + 1] = first;
        d->aborted_count = i + 1;
    }
    return 0;
}

/* decode(data, start, aborted, check_crc, limit, decompress, malformed) */
PyObject *records_decode(PyObject *module, PyObject *arguments)
{
    decoding d = {0};
    PyObject *source, *pairs, *made = NULL;
    long long start, limit;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLO!pLOO", &source, &start, &PyList_Type, &pairs,
                          &d.check_crc, &limit, &d.decompress, &d.malformed))
        return NULL;
    d.start = d.next_offset = start;
    d.limit = limit < 0 ? INT64_MAX : limit;
    if (gather_begin(&d.all, source) == 0 && take_aborted(&d, pairs) == 0 && decode_set(&d) == 0)
        made = gather_result(&d.all, d.start, d.next_offset);
    gather_end(&d.all);
    PyMem_Free(d.aborted);
    PyMem_Free(d.dead);
    return made;
}
