package sipmsg

// Header names a header field that this module handles. Every other header is
// OtherHeader and is reached with Named.
type Header uint8

// The headers, named as in their RFCs without dashes. ViaHeader and
// ReasonHeader carry a suffix because [Via] is the parsed value and Reason the
// phrase of a response.
const (
	OtherHeader Header = iota
	ViaHeader
	From
	To
	CallID
	CSeq
	Contact
	MaxForwards
	MaxBreadth
	Route
	RecordRoute
	Path
	ServiceRoute
	Require
	ProxyRequire
	Supported
	Unsupported
	Expires
	MinExpires
	Authorization
	WWWAuthenticate
	ProxyAuthorization
	ProxyAuthenticate
	AuthenticationInfo
	PAssertedIdentity
	PPreferredIdentity
	PCalledPartyID
	PAssociatedURI
	PVisitedNetworkID
	PChargingVector
	PChargingFunctionAddresses
	PAccessNetworkInfo
	PServedUser
	Privacy
	ContentLength
	ContentType
	Allow
	Event
	RAck
	RSeq
	RetryAfter
	UserAgent
	Server
	Date
	Timestamp
	SecurityClient
	SecurityServer
	SecurityVerify
	Warning
	ReasonHeader
	ContentEncoding
	Subject
	ReferTo
	ReferredBy
	AllowEvents
	SessionExpires
	AcceptContact
	RejectContact
	RequestDisposition
	Identity
	IdentityInfo

	headerCount
)

type headerInfo struct {
	name    string
	compact byte // RFC 3261 §7.3.3 and the IANA registry; 0 = none
	single  bool // a second line makes the message ambiguous: 400
	whole   bool // a comma does not separate elements
}

var headerTable = [headerCount]headerInfo{
	ViaHeader:                  {name: "Via", compact: 'v'},
	From:                       {name: "From", compact: 'f', single: true, whole: true},
	To:                         {name: "To", compact: 't', single: true, whole: true},
	CallID:                     {name: "Call-ID", compact: 'i', single: true, whole: true},
	CSeq:                       {name: "CSeq", single: true, whole: true},
	Contact:                    {name: "Contact", compact: 'm'},
	MaxForwards:                {name: "Max-Forwards", single: true, whole: true},
	MaxBreadth:                 {name: "Max-Breadth", single: true, whole: true},
	Route:                      {name: "Route"},
	RecordRoute:                {name: "Record-Route"},
	Path:                       {name: "Path"},
	ServiceRoute:               {name: "Service-Route"},
	Require:                    {name: "Require"},
	ProxyRequire:               {name: "Proxy-Require"},
	Supported:                  {name: "Supported", compact: 'k'},
	Unsupported:                {name: "Unsupported"},
	Expires:                    {name: "Expires", single: true, whole: true},
	MinExpires:                 {name: "Min-Expires", single: true, whole: true},
	Authorization:              {name: "Authorization", whole: true},
	WWWAuthenticate:            {name: "WWW-Authenticate", whole: true},
	ProxyAuthorization:         {name: "Proxy-Authorization", whole: true},
	ProxyAuthenticate:          {name: "Proxy-Authenticate", whole: true},
	AuthenticationInfo:         {name: "Authentication-Info", whole: true},
	PAssertedIdentity:          {name: "P-Asserted-Identity"},
	PPreferredIdentity:         {name: "P-Preferred-Identity"},
	PCalledPartyID:             {name: "P-Called-Party-ID"},
	PAssociatedURI:             {name: "P-Associated-URI"},
	PVisitedNetworkID:          {name: "P-Visited-Network-ID"},
	PChargingVector:            {name: "P-Charging-Vector", whole: true},
	PChargingFunctionAddresses: {name: "P-Charging-Function-Addresses", whole: true},
	PAccessNetworkInfo:         {name: "P-Access-Network-Info"},
	PServedUser:                {name: "P-Served-User"},
	Privacy:                    {name: "Privacy"},
	ContentLength:              {name: "Content-Length", compact: 'l', single: true, whole: true},
	ContentType:                {name: "Content-Type", compact: 'c', single: true, whole: true},
	Allow:                      {name: "Allow"},
	Event:                      {name: "Event", compact: 'o', single: true, whole: true},
	RAck:                       {name: "RAck", single: true, whole: true},
	RSeq:                       {name: "RSeq", single: true, whole: true},
	RetryAfter:                 {name: "Retry-After", whole: true},
	UserAgent:                  {name: "User-Agent", whole: true},
	Server:                     {name: "Server", whole: true},
	Date:                       {name: "Date", whole: true},
	Timestamp:                  {name: "Timestamp", whole: true},
	SecurityClient:             {name: "Security-Client"},
	SecurityServer:             {name: "Security-Server"},
	SecurityVerify:             {name: "Security-Verify"},
	Warning:                    {name: "Warning"},
	ReasonHeader:               {name: "Reason"},
	ContentEncoding:            {name: "Content-Encoding", compact: 'e'},
	Subject:                    {name: "Subject", compact: 's', whole: true},
	ReferTo:                    {name: "Refer-To", compact: 'r', whole: true},
	ReferredBy:                 {name: "Referred-By", compact: 'b', whole: true},
	AllowEvents:                {name: "Allow-Events", compact: 'u'},
	SessionExpires:             {name: "Session-Expires", compact: 'x', whole: true},
	AcceptContact:              {name: "Accept-Contact", compact: 'a'},
	RejectContact:              {name: "Reject-Contact", compact: 'j'},
	RequestDisposition:         {name: "Request-Disposition", compact: 'd'},
	Identity:                   {name: "Identity", compact: 'y'},
	IdentityInfo:               {name: "Identity-Info", compact: 'n', whole: true},
}

// String gives the canonical name, "" for OtherHeader.
func (h Header) String() string {
	if h < headerCount {
		return headerTable[h].name
	}
	return ""
}

const nameSlots = 256 // a power of two, well above headerCount

// nameIndex is an open-addressed hash table of the long names, compactIndex
// maps the one-letter names. Both are written at start only.
var nameIndex, compactIndex = func() (idx [nameSlots]Header, short [256]Header) {
	for h := Header(1); h < headerCount; h++ {
		info := headerTable[h]
		i := nameHash(info.name)
		for idx[i] != 0 {
			i = (i + 1) % nameSlots
		}
		idx[i] = h
		if c := info.compact; c != 0 {
			short[c], short[c-'a'+'A'] = h, h
		}
	}
	return idx, short
}()

func nameHash(s string) uint {
	n := len(s)
	return (uint(n)*7 + uint(lower[s[0]])*31 + uint(lower[s[n/2]])*17 + uint(lower[s[n-1]])*5) % nameSlots
}

// HeaderNamed gives the header of that name, in any letter case or compact
// form; OtherHeader for an unknown name.
func HeaderNamed(name string) Header {
	switch len(name) {
	case 0:
		return OtherHeader
	case 1:
		return compactIndex[name[0]]
	}
	for i := nameHash(name); ; i = (i + 1) % nameSlots {
		h := nameIndex[i]
		if h == OtherHeader || headerTable[h].name == name || equalFold(headerTable[h].name, name) {
			return h
		}
	}
}
