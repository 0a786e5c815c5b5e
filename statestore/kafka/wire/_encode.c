/* From lists of Python objects to one record batch, and what a sender asks of its rows before. */

#include "_records.h"

#define BATCH_BYTES_MAX ((Py_ssize_t)INT32_MAX)
/* The most bytes of a record besides key, value and headers: its length, attributes, the deltas of
   time and offset, and the number of headers. */
#define RECORD_OVERHEAD_MAX (5 + 1 + 10 + 5 + 5)

typedef struct {
    const uint8_t *data; /* NULL: null */
    Py_ssize_t size;
} piece;

typedef struct {
    PyObject *array; /* a bytearray, which can grow */
    uint8_t *begin;
    Py_ssize_t used, room;
} growing;

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

static inline int take_bytes(PyObject *given, piece *taken)
{
    if (given == Py_None) {
        taken->data = NULL;
        taken->size = 0;
        return 0;
    }
    if (given == NULL || !PyBytes_Check(given)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "keys, values and those of headers are bytes or None");
        return -1;
    }
    taken->data = (const uint8_t *)PyBytes_AsString(given);
    taken->size = PyBytes_Size(given);
    if (taken->size > BATCH_BYTES_MAX) {
        PyErr_SetString(PyExc_ValueError, "a key or value of 2 GiB or more fits no batch");
        return -1;
    }
    return 0;
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
    if (name->size > BATCH_BYTES_MAX) {
        PyErr_SetString(PyExc_ValueError, "a name of 2 GiB or more fits no batch");
        return -1;
    }
    return take_bytes(PyTuple_GetItem(pair, 1), value);
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
        *bytes += piece_bytes(&name) + piece_bytes(&value);
        if (*bytes > BATCH_BYTES_MAX) {
            PyErr_SetString(PyExc_ValueError, "headers of 2 GiB or more fit no batch");
            return -1;
        }
    }
    return count;
}

/* Room for so many bytes more; the whole is never larger than a batch can be. */
static int reserve(growing *it, Py_ssize_t more)
{
    if (more <= it->room - it->used)
        return 0;
    if (more > BATCH_BYTES_MAX - it->used) {
        PyErr_SetString(PyExc_ValueError, "a batch cannot have 2 GiB or more");
        return -1;
    }
    Py_ssize_t wanted = it->used + more;
    Py_ssize_t room = wanted > BATCH_BYTES_MAX / 2 ? BATCH_BYTES_MAX : 2 * wanted;
    if (it->array == NULL)
        it->array = PyByteArray_FromStringAndSize(NULL, room);
    else if (PyByteArray_Resize(it->array, room) < 0)
        return -1;
    if (it->array == NULL)
        return -1;
    it->begin = (uint8_t *)PyByteArray_AsString(it->array);
    it->room = room;
    return 0;
}

static int write_row(growing *it, int32_t row, int64_t time_delta, const piece *key,
                     const piece *value, PyObject *headers)
{
    PyObject *own;
    Py_ssize_t bytes, count = size_headers(headers, row, &own, &bytes);
    if (count < 0)
        return -1;
    Py_ssize_t body = 1 + long_bytes(time_delta) + long_bytes(row) + piece_bytes(key) +
                      piece_bytes(value) + long_bytes(count) + bytes;
    if (reserve(it, body + 5) < 0)
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

static int take_time(PyObject *times, Py_ssize_t row, int64_t *taken)
{
    PyObject *given = PyList_GetItem(times, row);
    if (given == NULL)
        return -1;
    /* A number whose class has a method of its own could change the lists meanwhile. */
    if (!PyLong_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "timestamps are whole numbers");
        return -1;
    }
    *taken = PyLong_AsLongLong(given);
    return *taken == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Write the rows behind the place of the head, and note the first time and the latest. */
static int write_rows(growing *it, PyObject *keys, PyObject *values, PyObject *times,
                      PyObject *headers, head *h)
{
    for (Py_ssize_t row = 0; row < h->count; row++) {
        piece key, value;
        int64_t time;
        if (take_bytes(PyList_GetItem(keys, row), &key) < 0 ||
            take_bytes(PyList_GetItem(values, row), &value) < 0 || take_time(times, row, &time) < 0)
            return -1;
        if (!row)
            h->first_time = h->latest = time;
        if (time > h->latest)
            h->latest = time;
        int64_t delta = (int64_t)((uint64_t)time - (uint64_t)h->first_time);
        if (write_row(it, (int32_t)row, delta, &key, &value, headers) < 0)
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

static int of_one_length(PyObject *keys, PyObject *values, PyObject *headers)
{
    Py_ssize_t count = PyList_Size(keys);
    if (PyList_Size(values) == count && (headers == NULL || PyList_Size(headers) == count))
        return 1;
    PyErr_SetString(PyExc_ValueError, "columns differ in length");
    return 0;
}

static int take_headers(PyObject **headers)
{
    if (*headers == Py_None)
        *headers = NULL;
    if (*headers == NULL || PyList_Check(*headers))
        return 0;
    PyErr_SetString(PyExc_TypeError, "headers are a list or None");
    return -1;
}

/* encode(keys, values, timestamps, headers, producer_id, producer_epoch, base_sequence, attributes,
   compress) */
PyObject *records_encode(PyObject *module, PyObject *arguments)
{
    PyObject *keys, *values, *times, *headers, *compress, *made = NULL;
    growing it = {NULL, NULL, 0, 0};
    head h = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!OLiiiO", &PyList_Type, &keys, &PyList_Type, &values,
                          &PyList_Type, &times, &headers, &h.producer, &h.epoch, &h.sequence,
                          &h.attributes, &compress))
        return NULL;
    if (take_headers(&headers) < 0 || !of_one_length(keys, values, headers) ||
        !of_one_length(keys, times, NULL))
        return NULL;
    h.count = PyList_Size(keys);
    if (h.count < 1 || h.count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a batch has at least one record, and not 2^31");
        return NULL;
    }
    if (reserve(&it, AT_RECORDS + 32) < 0)
        return NULL;
    it.used = AT_RECORDS;
    if (write_rows(&it, keys, values, times, headers, &h) == 0) {
        if (compress != Py_None)
            made = compressed(&it, &h, compress);
        else {
            write_head(it.begin, it.used, &h);
            made = PyBytes_FromStringAndSize((const char *)it.begin, it.used);
        }
    }
    Py_XDECREF(it.array);
    return made;
}

/* cuts(keys, values, headers, max_bytes) */
PyObject *records_cuts(PyObject *module, PyObject *arguments)
{
    PyObject *keys, *values, *headers;
    Py_ssize_t most;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!On", &PyList_Type, &keys, &PyList_Type, &values, &headers,
                          &most))
        return NULL;
    if (take_headers(&headers) < 0 || !of_one_length(keys, values, headers))
        return NULL;
    PyObject *made = PyList_New(0);
    Py_ssize_t count = PyList_Size(keys), bytes = AT_RECORDS, first = 0;
    for (Py_ssize_t row = 0; made != NULL && row <= count; row++) {
        Py_ssize_t size = 0, of_headers;
        if (row < count) {
            piece key, value;
            PyObject *own;
            if (take_bytes(PyList_GetItem(keys, row), &key) < 0 ||
                take_bytes(PyList_GetItem(values, row), &value) < 0 ||
                size_headers(headers, row, &own, &of_headers) < 0) {
                Py_CLEAR(made);
                break;
            }
            size = RECORD_OVERHEAD_MAX + piece_bytes(&key) + piece_bytes(&value) + of_headers;
        }
        int full = size > most - bytes; /* a row alone may be larger */
        if (row > first && (row == count || full)) {
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

/* partitions(keys, count, by_murmur2) */
PyObject *records_partitions(PyObject *module, PyObject *arguments)
{
    PyObject *keys;
    long partitions;
    int by_murmur2;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!lp", &PyList_Type, &keys, &partitions, &by_murmur2))
        return NULL;
    if (partitions < 1 || partitions > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a topic has at least one partition, and not 2^31");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(keys);
    PyObject *made = PyList_New(count);
    for (Py_ssize_t row = 0; made != NULL && row < count; row++) {
        piece key;
        long chosen = -1;
        if (take_bytes(PyList_GetItem(keys, row), &key) < 0) {
            Py_CLEAR(made);
            break;
        }
        if (key.data != NULL)
            chosen = by_murmur2
                         ? (long)((murmur2(key.data, key.size) & 0x7fffffffu) % (uint32_t)partitions)
                         : (long)(crc32_zlib(key.data, (size_t)key.size) % (uint32_t)partitions);
        PyObject *number = PyLong_FromLong(chosen);
        if (number == NULL || PyList_SetItem(made, row, number) < 0)
            Py_CLEAR(made);
    }
    return made;
}
