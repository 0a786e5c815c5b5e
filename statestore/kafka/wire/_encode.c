/* Writes rows as one record batch, and answers what a sender asks of its rows before. */

#include "_records.h"

#define BATCH_BYTES_MAX ((Py_ssize_t)INT32_MAX)
/* The most bytes of a record besides key, value and headers: its length, attributes, the deltas of
   time and offset, and the number of headers. */
#define RECORD_OVERHEAD_MAX (5 + 1 + 10 + 5 + 5)

/* Where times are taken from: a list, or numbers of 64 bits. */
typedef struct {
    PyObject *list;
    const uint8_t *numbers;
    Py_buffer view;
} times;

typedef struct {
    pieces keys, values;
    times timestamps;
    PyObject *headers; /* NULL: no record has any */
} rows;

typedef struct {
    Py_ssize_t count;
    long long producer;
    int epoch, sequence, attributes;
    int64_t first_time, latest;
} head;

static inline uint64_t zigzag(int64_t number)
{
    return (uint64_t)number << 1 ^ (number < 0 ? UINT64_MAX : 0);
}

static inline int long_bytes(int64_t number)
{
    int bytes = 1;
    for (uint64_t left = zigzag(number); left > 0x7f; left >>= 7)
        bytes++;
    return bytes;
}

static inline uint8_t *write_long(uint8_t *p, int64_t number)
{
    uint64_t left = zigzag(number);
    for (; left > 0x7f; left >>= 7)
        *p++ = (uint8_t)(left | 0x80);
    *p++ = (uint8_t)left;
    return p;
}

static inline Py_ssize_t piece_bytes(const piece *it)
{
    return it->data == NULL ? 1 : long_bytes(it->size) + it->size;
}

static inline uint8_t *write_piece(uint8_t *p, const piece *it)
{
    if (it->data == NULL)
        return write_long(p, -1);
    p = write_long(p, it->size);
    memcpy(p, it->data, (size_t)it->size);
    return p + it->size;
}

static int take_header(PyObject *pair, piece *name, piece *value)
{
    PyObject *text;
    if (pair == NULL || !PyTuple_Check(pair) || PyTuple_Size(pair) != 2 ||
        !PyUnicode_Check(text = PyTuple_GetItem(pair, 0))) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a header is a tuple of its name and its value");
        return -1;
    }
    name->data = (const uint8_t *)PyUnicode_AsUTF8AndSize(text, &name->size);
    if (name->data == NULL)
        return -1;
    return take_bytes(PyTuple_GetItem(pair, 1), value);
}

/* Sums of sizes that a batch can have. */
static int add_up(Py_ssize_t *sum, Py_ssize_t more)
{
    if (more > BATCH_BYTES_MAX - *sum) {
        PyErr_SetString(PyExc_ValueError, "a record of 2 GiB or more fits no batch");
        return -1;
    }
    *sum += more;
    return 0;
}

/* How many headers a row has, and their bytes without that number; -1 for an error. */
static Py_ssize_t size_headers(PyObject *headers, Py_ssize_t row, PyObject **taken,
                               Py_ssize_t *bytes)
{
    *bytes = 0;
    *taken = NULL;
    if (headers == NULL)
        return 0;
    *taken = PyList_GetItem(headers, row);
    if (*taken == NULL || !PyTuple_Check(*taken)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "the headers of a record are a tuple of pairs");
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(*taken);
    for (Py_ssize_t i = 0; i < count; i++) {
        piece name, value;
        if (take_header(PyTuple_GetItem(*taken, i), &name, &value) < 0)
            return -1;
        if (add_up(bytes, piece_bytes(&name)) < 0 || add_up(bytes, piece_bytes(&value)) < 0)
            return -1;
    }
    return count;
}

static int write_row(growing *it, int32_t row, int64_t time_delta, const piece *key,
                     const piece *value, PyObject *headers)
{
    PyObject *own;
    Py_ssize_t body, count = size_headers(headers, row, &own, &body);
    if (count < 0 || add_up(&body, piece_bytes(key)) < 0 || add_up(&body, piece_bytes(value)) < 0 ||
        add_up(&body, 1 + long_bytes(time_delta) + long_bytes(row) + long_bytes(count)) < 0 ||
        grow(it, body + 5, BATCH_BYTES_MAX) < 0)
        return -1;
    uint8_t *p = write_long(it->begin + it->used, body);
    *p++ = 0;
    p = write_long(p, time_delta);
    p = write_long(p, row);
    p = write_piece(p, key);
    p = write_piece(p, value);
    p = write_long(p, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        piece name, content;
        if (take_header(PyTuple_GetItem(own, i), &name, &content) < 0)
            return -1;
        p = write_piece(p, &name);
        p = write_piece(p, &content);
    }
    it->used = p - it->begin;
    return 0;
}

static int take_time(const times *from, Py_ssize_t row, int64_t *taken)
{
    if (from->list == NULL) {
        *taken = number_at(from->numbers, row);
        return 0;
    }
    PyObject *given = PyList_GetItem(from->list, row);
    if (given == NULL)
        return -1;
    /* Only a whole number: an object that converts itself could change the lists meanwhile. */
    if (!PyLong_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "timestamps are whole numbers");
        return -1;
    }
    *taken = PyLong_AsLongLong(given);
    return *taken == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Write the rows behind the place of the head, and note the first time and the latest. */
static int write_rows(growing *it, const rows *from, head *h)
{
    for (Py_ssize_t row = 0; row < h->count; row++) {
        piece key, value;
        int64_t time;
        if (take_piece(&from->keys, row, &key) < 0 || take_piece(&from->values, row, &value) < 0 ||
            take_time(&from->timestamps, row, &time) < 0)
            return -1;
        if (!row)
            h->first_time = h->latest = time;
        if (time > h->latest)
            h->latest = time;
        int64_t delta = (int64_t)((uint64_t)time - (uint64_t)h->first_time);
        if (write_row(it, (int32_t)row, delta, &key, &value, from->headers) < 0)
            return -1;
    }
    return 0;
}

/* Write the head in front of what follows it, and the sum of both. */
static void write_head(uint8_t *p, Py_ssize_t size, const head *h)
{
    store64(p, 0);
    store32(p + AT_LENGTH, (uint32_t)(size - AT_LEADER_EPOCH));
    store32(p + AT_LEADER_EPOCH, UINT32_MAX); /* the broker sets it */
    p[AT_MAGIC] = 2;
    store16(p + AT_ATTRIBUTES, (uint16_t)h->attributes);
    store32(p + AT_LAST_DELTA, (uint32_t)(h->count - 1));
    store64(p + AT_BASE_TIMESTAMP, (uint64_t)h->first_time);
    store64(p + AT_MAX_TIMESTAMP, (uint64_t)h->latest);
    store64(p + AT_PRODUCER_ID, (uint64_t)h->producer);
    store16(p + AT_PRODUCER_EPOCH, (uint16_t)h->epoch);
    store32(p + AT_BASE_SEQUENCE, (uint32_t)h->sequence);
    store32(p + AT_COUNT, (uint32_t)h->count);
    store32(p + AT_CRC, crc32c(p + AT_ATTRIBUTES, (size_t)(size - AT_ATTRIBUTES)));
}

/* A batch with what the function makes of the rows. */
static PyObject *compressed(const growing *it, const head *h, PyObject *compress)
{
    PyObject *made = NULL, *whole = PyMemoryView_FromObject(it->array);
    PyObject *rows = whole == NULL ? NULL : PySequence_GetSlice(whole, AT_RECORDS, it->used);
    Py_XDECREF(whole);
    PyObject *packed = rows == NULL ? NULL : PyObject_CallFunctionObjArgs(compress, rows, NULL);
    Py_XDECREF(rows);
    if (packed == NULL)
        return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE) == 0) {
        if (view.len > BATCH_BYTES_MAX - AT_RECORDS)
            PyErr_SetString(PyExc_ValueError, "a batch cannot have 2 GiB or more");
        else
            made = PyBytes_FromStringAndSize(NULL, AT_RECORDS + view.len);
        if (made != NULL) {
            uint8_t *p = (uint8_t *)PyBytes_AsString(made);
            memcpy(p + AT_RECORDS, view.buf, (size_t)view.len);
            write_head(p, AT_RECORDS + view.len, h);
        }
        PyBuffer_Release(&view);
    }
    Py_DECREF(packed);
    return made;
}

/* Open keys, values and headers, which have one length; `close_rows` has to follow. */
static int open_rows(rows *it, PyObject *keys, PyObject *values, PyObject *headers)
{
    memset(it, 0, sizeof *it);
    if (open_pieces(keys, &it->keys) < 0 || open_pieces(values, &it->values) < 0)
        return -1;
    it->headers = headers == Py_None ? NULL : headers;
    if (it->headers != NULL && !PyList_Check(headers)) {
        PyErr_SetString(PyExc_TypeError, "headers are a list or None");
        return -1;
    }
    if (it->keys.count != it->values.count ||
        (it->headers != NULL && PyList_Size(headers) != it->keys.count)) {
        PyErr_SetString(PyExc_ValueError, "columns differ in length");
        return -1;
    }
    return 0;
}

static int open_times(rows *it, PyObject *given)
{
    Py_ssize_t count;
    if (PyList_Check(given)) {
        it->timestamps.list = given;
        count = PyList_Size(given);
    } else {
        if (PyObject_GetBuffer(given, &it->timestamps.view, PyBUF_SIMPLE) < 0)
            return -1;
        it->timestamps.numbers = it->timestamps.view.buf;
        count = it->timestamps.view.len / (Py_ssize_t)sizeof(int64_t);
    }
    if (count == it->keys.count)
        return 0;
    PyErr_SetString(PyExc_ValueError, "columns differ in length");
    return -1;
}

static void close_rows(rows *it)
{
    close_pieces(&it->keys);
    close_pieces(&it->values);
    if (it->timestamps.view.obj != NULL)
        PyBuffer_Release(&it->timestamps.view);
}

static PyObject *encoded(const rows *from, head *h, PyObject *compress)
{
    growing it = {NULL, NULL, 0, 0};
    PyObject *made = NULL;
    h->count = from->keys.count;
    if (h->count < 1 || h->count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a batch has at least one record, and not 2^31");
        return NULL;
    }
    if (grow(&it, AT_RECORDS, BATCH_BYTES_MAX) < 0)
        return NULL;
    it.used = AT_RECORDS;
    if (write_rows(&it, from, h) == 0) {
        if (compress != Py_None)
            made = compressed(&it, h, compress);
        else {
            write_head(it.begin, it.used, h);
            made = PyBytes_FromStringAndSize((const char *)it.begin, it.used);
        }
    }
    Py_XDECREF(it.array);
    return made;
}

/* encode(keys, values, timestamps, headers, producer_id, producer_epoch, base_sequence, attributes,
   compress) */
PyObject *records_encode(PyObject *module, PyObject *arguments)
{
    PyObject *keys, *values, *timestamps, *headers, *compress, *made = NULL;
    head h = {0};
    rows from;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOLiiiO", &keys, &values, &timestamps, &headers,
                          &h.producer, &h.epoch, &h.sequence, &h.attributes, &compress))
        return NULL;
    if (open_rows(&from, keys, values, headers) == 0 && open_times(&from, timestamps) == 0)
        made = encoded(&from, &h, compress);
    close_rows(&from);
    return made;
}

/* The most bytes of a row in a batch, whatever its place and time; -1 for an error. */
static Py_ssize_t row_bytes_max(const rows *from, Py_ssize_t row)
{
    piece key, value;
    PyObject *own;
    Py_ssize_t bytes;
    if (take_piece(&from->keys, row, &key) < 0 || take_piece(&from->values, row, &value) < 0 ||
        size_headers(from->headers, row, &own, &bytes) < 0 ||
        add_up(&bytes, piece_bytes(&key)) < 0 || add_up(&bytes, piece_bytes(&value)) < 0)
        return -1;
    return bytes + RECORD_OVERHEAD_MAX;
}

static PyObject *cuts_of(const rows *from, Py_ssize_t most)
{
    PyObject *made = PyList_New(0);
    Py_ssize_t bytes = AT_RECORDS, first = 0, count = from->keys.count;
    for (Py_ssize_t row = 0; made != NULL && row <= count; row++) {
        Py_ssize_t size = row < count ? row_bytes_max(from, row) : 0;
        if (size < 0) {
            Py_CLEAR(made);
            break;
        }
        /* A row alone may be larger. */
        if (row > first && (row == count || size > most - bytes)) {
            PyObject *place = PyLong_FromSsize_t(row);
            if (place == NULL || PyList_Append(made, place) < 0)
                Py_CLEAR(made);
            Py_XDECREF(place);
            first = row;
            bytes = AT_RECORDS;
        }
        bytes += size;
    }
    return made;
}

/* cuts(keys, values, headers, max_bytes) */
PyObject *records_cuts(PyObject *module, PyObject *arguments)
{
    PyObject *keys, *values, *headers, *made = NULL;
    Py_ssize_t most;
    rows from;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOn", &keys, &values, &headers, &most))
        return NULL;
    if (open_rows(&from, keys, values, headers) == 0)
        made = cuts_of(&from, most);
    close_rows(&from);
    return made;
}

static Py_ssize_t first_larger(const rows *from, Py_ssize_t limit)
{
    piece key, value;
    for (Py_ssize_t row = 0; row < from->keys.count; row++) {
        if (take_piece(&from->keys, row, &key) < 0 || take_piece(&from->values, row, &value) < 0)
            return -2;
        if (key.size > limit || value.size > limit - key.size)
            return row;
    }
    return -1;
}

/* larger(keys, values, limit) */
PyObject *records_larger(PyObject *module, PyObject *arguments)
{
    PyObject *keys, *values;
    Py_ssize_t limit, found = -2;
    rows from;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOn", &keys, &values, &limit))
        return NULL;
    if (open_rows(&from, keys, values, Py_None) == 0)
        found = first_larger(&from, limit);
    close_rows(&from);
    return found < -1 ? NULL : PyLong_FromSsize_t(found);
}

static uint32_t murmur2(const uint8_t *p, Py_ssize_t size)
{
    const uint32_t multiplier = 0x5bd1e995u;
    uint32_t digest = 0x9747b28cu ^ (uint32_t)size;
    for (; size >= 4; p += 4, size -= 4) {
        uint32_t word = load32_little(p) * multiplier;
        digest = digest * multiplier ^ (word ^ word >> 24) * multiplier;
    }
    if (size) {
        uint32_t rest = 0;
        for (Py_ssize_t i = 0; i < size; i++)
            rest |= (uint32_t)p[i] << 8 * i;
        digest = (digest ^ rest) * multiplier;
    }
    digest = (digest ^ digest >> 13) * multiplier;
    return digest ^ digest >> 15;
}

static PyObject *partition_of(const pieces *keys, Py_ssize_t row, uint32_t count, int by_murmur2)
{
    piece key;
    if (take_piece(keys, row, &key) < 0)
        return NULL;
    if (key.data == NULL)
        return PyLong_FromLong(-1);
    uint32_t digest = by_murmur2 ? murmur2(key.data, key.size) & 0x7fffffffu
                                 : crc32_zlib(key.data, (size_t)key.size);
    return PyLong_FromUnsignedLong(digest % count);
}

/* partitions(keys, count, by_murmur2) */
PyObject *records_partitions(PyObject *module, PyObject *arguments)
{
    PyObject *given, *made = NULL;
    long long count;
    int by_murmur2;
    pieces keys;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLp", &given, &count, &by_murmur2))
        return NULL;
    if (count < 1 || count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a topic has at least one partition, and not 2^31");
        return NULL;
    }
    if (open_pieces(given, &keys) == 0) {
        made = PyList_New(keys.count);
        for (Py_ssize_t row = 0; made != NULL && row < keys.count; row++) {
            PyObject *number = partition_of(&keys, row, (uint32_t)count, by_murmur2);
            if (number == NULL || PyList_SetItem(made, row, number) < 0)
                Py_CLEAR(made);
        }
    }
    close_pieces(&keys);
    return made;
}
