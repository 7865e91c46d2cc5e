package main

import (
	"encoding/binary"
	"math"
	"strings"
)

// A scalar of an event, with its number in JSON.
type scalar struct{ tag, text string }

// scalars returns the step and the scalars of an Event of TensorFlow's event.proto. ok: the data is an Event.
func scalars(data []byte) (step int64, values []scalar, ok bool) {
	ok = fields(data, func(field int, number uint64, content []byte) bool {
		switch {
		case field == 2 && content == nil:
			step = int64(number)
		case field == 5 && content != nil:
			return fields(content, func(field int, _ uint64, content []byte) bool {
				if field != 1 || content == nil {
					return true
				}
				tag, text, ok := value(content)
				if tag != "" && text != "" {
					values = put(values, scalar{tag, text})
				}
				return ok
			})
		}
		return true
	})
	return step, values, ok
}

// put adds a scalar; of two with one tag the last counts.
func put(values []scalar, one scalar) []scalar {
	for i := range values {
		if values[i].tag == one.tag {
			values[i] = one
			return values
		}
	}
	return append(values, one)
}

// value returns the tag of a Summary.Value, and its number if it is a scalar.
func value(data []byte) (tag, text string, ok bool) {
	ok = fields(data, func(field int, _ uint64, content []byte) bool {
		switch {
		case field == 1 && content != nil:
			tag = strings.ToValidUTF8(string(content), "\uFFFD")
		case field == 2 && len(content) == 4:
			text = number(float64(math.Float32frombits(binary.LittleEndian.Uint32(content))), 32)
		case field == 8 && content != nil:
			var known bool
			text, known = tensor(content)
			return known
		}
		return true
	})
	return tag, text, ok
}

// The types of a TensorProto that are numbers.
const (
	typeFloat, typeDouble, typeInt32, typeInt64 = 1, 2, 3, 9
)

// tensor returns the only element of a TensorProto; "" if it has several, or a type without numbers.
func tensor(data []byte) (text string, ok bool) {
	var kind, plain uint64
	var shape, content []byte
	elements := map[int][]byte{}
	isPlain := map[int]uint64{}
	ok = fields(data, func(field int, number uint64, bytes []byte) bool {
		switch {
		case field == 1 && bytes == nil:
			kind = number
		case field == 2:
			shape = bytes
		case field == 4:
			content = bytes
		case bytes == nil:
			isPlain[field] = number
		default:
			elements[field] = bytes
		}
		return true
	})
	field, size := 0, 0
	switch kind {
	case typeFloat:
		field, size = 5, 4
	case typeDouble:
		field, size = 6, 8
	case typeInt32:
		field, size = 7, 4
	case typeInt64:
		field, size = 10, 8
	default:
		return "", ok
	}
	isWhole := kind == typeInt32 || kind == typeInt64
	if len(content) == 0 {
		content = elements[field]
		if found, there := isPlain[field]; there {
			return number(float64(int64(found)), 64), ok
		}
		if len(content) == 0 {
			if len(shape) > 0 {
				return "", ok
			}
			return "0", ok
		}
		if isWhole {
			found, rest, good := varint(content)
			if !good || len(rest) > 0 {
				return "", ok
			}
			return number(float64(int64(found)), 64), ok
		}
	}
	if len(content) != size {
		return "", ok
	}
	if size == 4 {
		plain = uint64(binary.LittleEndian.Uint32(content))
	} else {
		plain = binary.LittleEndian.Uint64(content)
	}
	switch kind {
	case typeFloat:
		return number(float64(math.Float32frombits(uint32(plain))), 32), ok
	case typeDouble:
		return number(math.Float64frombits(plain), 64), ok
	case typeInt32:
		return number(float64(int32(plain)), 64), ok
	}
	return number(float64(int64(plain)), 64), ok
}

// fields calls each for every field of a message: with a number, or with content that is not nil. It returns false if
// the data is not a message, or if a call did.
func fields(data []byte, each func(field int, number uint64, content []byte) bool) bool {
	for len(data) > 0 {
		key, rest, ok := varint(data)
		if !ok {
			return false
		}
		data = rest
		size := uint64(0)
		switch key & 7 {
		case 0:
			number, rest, ok := varint(data)
			if !ok || !each(int(key>>3), number, nil) {
				return false
			}
			data = rest
			continue
		case 1:
			size = 8
		case 2:
			if size, data, ok = varint(data); !ok {
				return false
			}
		case 5:
			size = 4
		default:
			return false
		}
		if size > uint64(len(data)) || !each(int(key>>3), 0, data[:size:size]) {
			return false
		}
		data = data[size:]
	}
	return true
}

func varint(data []byte) (uint64, []byte, bool) {
	number, size := binary.Uvarint(data)
	if size <= 0 {
		return 0, nil, false
	}
	return number, data[size:], true
}
