/* The records of a set, gathered in columns that point into it. */

#include "_records.h"

#define NUMBER ((Py_ssize_t)sizeof(int64_t))

static int append(PyObject *list, PyObject *item)
{
    if (item == NULL)
        return -1;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

int gather_begin(gathered *all, PyObject *source)
{
    memset(all, 0, sizeof *all);
    if (PyObject_GetBuffer(source, &all->set, PyBUF_SIMPLE) < 0)
        return -1;
    all->source = source;
    return 0;
}

void gather_end(gathered *all)
{
    growing *held[] = {&all->copied,       &all->times,       &all->offsets,     &all->keys.ends,
                       &all->keys.valid, &all->values.ends, &all->values.valid};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        Py_CLEAR(held[i]->array);
    Py_CLEAR(all->headers);
    if (all->source != NULL)
        PyBuffer_Release(&all->set);
}

int gather_payload(gathered *all, Py_ssize_t records, const uint8_t *payload, Py_ssize_t size,
                   Py_ssize_t at, int is_there)
{
    int is_copied = all->copied.array != NULL;
    all->payload = payload;
    if (is_there && !is_copied)
        all->shift = at;
    else {
        /* With what the records before it point to, at the same places. */
        Py_ssize_t kept = !is_copied && all->count ? at : 0;
        if (grow(&all->copied, kept + size, PY_SSIZE_T_MAX) < 0)
            return -1;
        add_bytes(&all->copied, all->set.buf, kept);
        all->shift = all->copied.used;
        add_bytes(&all->copied, payload, size);
    }
    /* There are fewer records than bytes, so the products do not overflow. */
    if (grow(&all->offsets, records * NUMBER, PY_SSIZE_T_MAX) < 0 ||
        grow(&all->times, records * NUMBER, PY_SSIZE_T_MAX) < 0 ||
        grow(&all->keys.ends, 2 * records * NUMBER, PY_SSIZE_T_MAX) < 0)
        return -1;
    return grow(&all->values.ends, 2 * records * NUMBER, PY_SSIZE_T_MAX);
}

static int add_piece(gathered *all, spans *to, const piece *it)
{
    int64_t begin = it->data == NULL ? 0 : all->shift + (it->data - all->payload);
    add_number(&to->ends, begin);
    add_number(&to->ends, begin + it->size);
    return add_validity(&to->valid, all->count, it->data == NULL);
}

/* The list of headers begins with the first record that has any. */
static int add_headers(gathered *all, PyObject *headers)
{
    if (all->headers == NULL) {
        if (headers == NULL)
            return 0;
        all->headers = PyList_New(0);
        int failed = all->headers == NULL;
        for (Py_ssize_t i = 0; !failed && i < all->count; i++)
            failed = append(all->headers, PyTuple_New(0)) < 0;
        if (failed) {
            Py_DECREF(headers);
            return -1;
        }
    }
    return append(all->headers, headers == NULL ? PyTuple_New(0) : headers);
}

int gather_add(gathered *all, const record *r, PyObject *headers)
{
    if (add_headers(all, headers) < 0 || add_piece(all, &all->keys, &r->key) < 0 ||
        add_piece(all, &all->values, &r->value) < 0)
        return -1;
    add_number(&all->times, r->timestamp);
    add_number(&all->offsets, r->offset);
    all->count++;
    all->bytes += r->key.size + r->value.size;
    return 0;
}

/* A range if no offset is missing, else the numbers themselves. */
static PyObject *offsets_of(gathered *all, int64_t start)
{
    const uint8_t *numbers = all->offsets.begin;
    int64_t first = all->count ? number_at(numbers, 0) : start;
    int64_t last = all->count ? number_at(numbers, all->count - 1) : first - 1;
    if (last - first + 1 == all->count)
        return PyObject_CallFunction((PyObject *)&PyRange_Type, "LL", (long long)first,
                                     (long long)last + 1);
    return grown(&all->offsets);
}

/* A ByteColumn as a plain tuple. */
static PyObject *column_of(spans *it, PyObject *data, Py_ssize_t count)
{
    PyObject *ends = grown(&it->ends), *valid = Py_None;
    if (it->valid.array != NULL)
        valid = grown(&it->valid);
    else
        Py_INCREF(valid);
    if (ends != NULL && valid != NULL)
        return Py_BuildValue("(ONNnnn)", data, ends, valid, (Py_ssize_t)0, count, (Py_ssize_t)2);
    Py_XDECREF(ends);
    Py_XDECREF(valid);
    return NULL;
}

PyObject *gather_result(gathered *all, int64_t start, int64_t next_offset)
{
    PyObject *data = all->source, *offsets = offsets_of(all, start), *times = grown(&all->times);
    if (all->copied.array != NULL)
        data = grown(&all->copied);
    else
        Py_INCREF(data);
    PyObject *keys = data == NULL ? NULL : column_of(&all->keys, data, all->count);
    PyObject *values = data == NULL ? NULL : column_of(&all->values, data, all->count);
    Py_XDECREF(data);
    if (offsets != NULL && keys != NULL && values != NULL && times != NULL)
        return Py_BuildValue("(NNNNOLL)", keys, values, times, offsets,
                             all->headers == NULL ? Py_None : all->headers, (long long)next_offset,
                             (long long)all->bytes);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    Py_XDECREF(times);
    Py_XDECREF(offsets);
    return NULL;
}
