package api

import "fmt"

// Code says what kind of error it is. Codes are stable: scripts may rely on them.
type Code string

const (
	NotFound    Code = "not_found"    // what was named does not exist
	Invalid     Code = "invalid"      // the request makes no sense
	Conflict    Code = "conflict"     // it contradicts what is stored
	TooLarge    Code = "too_large"    // the request is over a limit
	NoLeader    Code = "no_leader"    // no majority of the controllers works together
	Unavailable Code = "unavailable"  // the node cannot answer now
	Unreachable Code = "unreachable"  // the client does not reach the node
	Internal    Code = "internal"     // a defect
	Unsupported Code = "no_such_call" // the API has no such path or method
)

// Error is what the API answers instead of a result.
type Error struct {
	Code     Code   `json:"code"`
	Message  string `json:"message"`    // what is wrong
	WhatToDo string `json:"what_to_do"` // may be empty
}

// Error is one line.
func (e *Error) Error() string {
	if e.WhatToDo == "" {
		return e.Message
	}
	return e.Message + "; " + e.WhatToDo
}

// Errorf returns an error of a code with a message and no advice.
func Errorf(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

// Advise returns a copy of e that says what to do.
func (e *Error) Advise(whatToDo string) *Error {
	return &Error{Code: e.Code, Message: e.Message, WhatToDo: whatToDo}
}

// OnLine returns a copy of e that says in which line of an import it is.
func (e *Error) OnLine(line int) *Error {
	return &Error{Code: e.Code, Message: fmt.Sprintf("line %d: %s", line, e.Message), WhatToDo: e.WhatToDo}
}
